"""A crash of LLVM as an error message.

MLIR answers some inputs with `abort()` or a stack overflow, which no Python code can catch. The work is done
in a forked child, before anything large is imported; the parent waits and reports what the child was doing when
it died.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable

_PHASE_BYTES = 4096
_phase_memory: mmap.mmap | None = None


class Terminated(BaseException):
    """SIGTERM or SIGHUP, once: what was half written is removed on the way out. The second one kills."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def phase(what: str) -> None:
    """Note what is being done, for the message if it crashes; does nothing outside `isolated`."""
    if _phase_memory is not None:
        text = what.encode()[: _PHASE_BYTES - 1]
        _phase_memory[: len(text) + 1] = text + b"\0"


def isolated(work: Callable[[], int], tool: str) -> int:
    """`work()` in a child process: its exit code, or 1 and a message where it died of a signal.

    A Ctrl-C that `work` does not answer is a line on standard error, and 130.
    """
    if not hasattr(os, "fork"):
        return work()
    global _phase_memory
    _phase_memory = mmap.mmap(-1, _PHASE_BYTES)
    parent, numbers = os.getpid(), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard, hears = os.pipe()
    os.set_blocking(hears, False)
    # One that comes now waits until both processes know what to do about it.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_with(parent)
            os.close(heard)
            signal.set_wakeup_fd(hears, warn_on_full_buffer=False)  # a byte for each signal, in the pipe
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, _terminate)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:
            code = 128 + signal.SIGPIPE
        except Terminated as error:
            code = error.exit_code
        except KeyboardInterrupt:
            print(f"{tool}: interrupted", file=sys.stderr, flush=True)
            code = 128 + signal.SIGINT
        except BaseException:
            traceback.print_exc()  # a bug in superopt: `work` has answered what users can cause
            sys.stderr.flush()
        finally:
            os._exit(code)  # the parent's buffers and exit handlers are not ours to run

    # A terminal sends Ctrl-C to both; the child decides what it means. What is sent to us alone is passed on.
    os.close(hears)

    def has_heard(seconds: float) -> bool:
        while select.select([heard], [], [], seconds)[0] and (signals := os.read(heard, 64)):
            if signal.SIGINT in signals:
                return True
        return False

    interrupts: list[int] = []

    def pass_on_if_alone(received: int, frame: object) -> None:
        interrupts.append(received)
        if not has_heard(0.2):
            os.kill(child, received)
            has_heard(1)  # so that what it writes is not taken for an answer to the next one

    def pass_on(received: int, frame: object) -> None:
        os.kill(child, received)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, pass_on_if_alone)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    try:
        while True:
            try:
                _, status = os.waitpid(child, 0)
                break
            except InterruptedError:
                continue
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(heard)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    if -code in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        return 128 - code
    if interrupts:  # an extension module that was being imported
        print(f"{tool}: interrupted; nothing was written", file=sys.stderr)
        return 128 + signal.SIGINT
    doing = _phase_memory[:].split(b"\0", 1)[0].decode(errors="replace")
    name = signal.Signals(-code).name
    print(
        f"{tool}: error: MLIR crashed ({name}) while {doing or 'starting'}; nothing was written",
        file=sys.stderr,
    )
    return 1


def _terminate(received: int, frame: object) -> None:
    signal.signal(received, signal.SIG_DFL)
    raise Terminated(received)


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, so that no search outlives a killed tool."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
