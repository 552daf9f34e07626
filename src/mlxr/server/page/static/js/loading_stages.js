// The stages of a model that is being loaded, with the seconds of each.

const NAMES = { kernels: "compiling kernels for this machine", weights: "loading weights", steps: "preparing steps" };

/** What a model's progress has told so far, in stages. */
export class LoadingStages {
  constructor(now = performance.now()) {
    this.begun = now;
    this.stages = []; // {name, percent, begun, ended}
  }

  /** Takes a text such as `weights 25 %`; an empty one changes nothing. */
  tell(progress, now = performance.now()) {
    const [, name, percent] = /^(.*?)(?: (\d+) %)?$/.exec(progress);
    if (!name) return;
    const last = this.stages.at(-1);
    if (last?.name === name) { last.percent = percent ?? null; return; }
    if (last) last.ended = now;
    this.stages.push({ name, percent: percent ?? null, begun: last ? now : this.begun, ended: null });
  }

  /** The lines for people: name, seconds, whether it has ended. */
  lines(now = performance.now()) {
    return this.stages.map(({ name, percent, begun, ended }) => ({
      text: `${NAMES[name] ?? name}${ended === null && percent !== null && name !== "kernels" ? ` ${percent} %` : ""}`,
      seconds: (((ended ?? now) - begun) / 1000).toFixed(1),
      isDone: ended !== null,
    }));
  }
}
