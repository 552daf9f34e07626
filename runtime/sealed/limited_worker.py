"""What runs in a `LimitedProcess`: a script of its own that answers questions. It imports nothing of MLXR.

The system limits the address space and the CPU time for each question.

Protocol: a line of JSON in, a line of JSON out. The first line out is `{}`, when the process is ready, or `{"unsealed":
why}`. A script with `IS_SEALED = True` opens nothing after that, where the system sees to it (`seal`).
"""

import json
import os
import resource
import runpy
import signal
import sys
import threading
import time
from pathlib import Path


def _bound_memory(most_bytes: int) -> None:
    """Limits the address space; on systems that ignore this limit, a thread watches the resident memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
        return

    def watch() -> None:
        while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most_bytes:  # in bytes on macOS
            time.sleep(0.01)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serves until standard input ends."""
    script, most_bytes, cpu_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but is meant for its parent
    # Answers go to a copy of standard output, so that nothing which a script prints can mix with them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    names = runpy.run_path(script)
    answer = names["answerer"]()
    seal = runpy.run_path(str(Path(__file__).with_name("seal.py")))["seal"]
    _bound_memory(most_bytes)
    why = seal() if names.get("IS_SEALED") else ""
    print(json.dumps({"unsealed": why} if why else {}), file=answers, flush=True)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # its signal ends the process, whatever code is running
        text = json.dumps(answer(question))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
