// Moves and scales a group inside an SVG: by pointer, wheel, two fingers and keys.

const LEAST = 0.1;
const MOST = 4;

/** The view of one SVG. */
export class PanZoom {
  /**
   * @param {SVGSVGElement} picture
   * @param {SVGGElement} group is moved and scaled.
   */
  constructor(picture, group) {
    Object.assign(this, { picture, group, x: 0, y: 0, scale: 1, pointers: new Map(), moved: false });
    picture.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    picture.addEventListener("pointerdown", (event) => this.#down(event));
    picture.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, (event) => this.pointers.delete(event.pointerId));
  }

  /** Shows a box of the picture as large as it fits, but not larger than `most`; it may be higher for `least`. */
  fit({ x, y, width, height }, most = 1, least = 0.55) {
    const { clientWidth, clientHeight } = this.picture.parentElement;
    const scale = Math.min(most, (clientWidth - 16) / width, Math.max((clientHeight - 16) / height, least));
    this.#set(Math.max(8, (clientWidth - width * scale) / 2) - x * scale, 8 - y * scale, scale);
  }

  /** Scales around a point of the element; without one, around its middle. */
  zoom(factor, x = this.picture.clientWidth / 2, y = this.picture.clientHeight / 2) {
    const scale = Math.min(MOST, Math.max(LEAST, this.scale * factor));
    this.#set(x - ((x - this.x) / this.scale) * scale, y - ((y - this.y) / this.scale) * scale, scale);
  }

  /** Moves by so many pixels. */
  pan(x, y) {
    this.#set(this.x + x, this.y + y, this.scale);
  }

  /** Moves just as far as a box of the picture needs to be seen. */
  reveal({ x, y, width, height }) {
    const { clientWidth, clientHeight } = this.picture.parentElement;
    const by = (from, length, size) => (from < 12 ? 12 - from : from + length > size - 12 ? Math.max(size - 12 - from - length, 12 - from) : 0);
    this.pan(by(this.x + x * this.scale, width * this.scale, clientWidth), by(this.y + y * this.scale, height * this.scale, clientHeight));
  }

  #set(x, y, scale) {
    Object.assign(this, { x, y, scale });
    this.group.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  }

  #wheel(event) {
    event.preventDefault();
    const { left, top } = this.picture.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY * 0.01), event.clientX - left, event.clientY - top);
    else if (event.shiftKey) this.pan(-event.deltaY, 0);
    else this.pan(-event.deltaX, -event.deltaY);
  }

  #down(event) {
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.moved = false;
  }

  #move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const [x, y] = [event.clientX - before[0], event.clientY - before[1]];
    if (!this.moved && Math.hypot(x, y) < 4) return; // a click
    if (!this.moved) this.picture.setPointerCapture(event.pointerId);
    this.moved = true;
    if (this.pointers.size === 1) {
      this.pan(x, y);
    } else {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const distance = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]);
      const { left, top } = this.picture.getBoundingClientRect();
      this.zoom(distance([event.clientX, event.clientY]) / Math.max(1, distance(before)), other[0] - left, other[1] - top);
    }
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  }
}
