"""Takes from this process what it needs no more: files, sockets, other processes. It imports nothing of MLXR.

On Linux, a filter of system calls (seccomp) lets only those pass that compute, allocate, and use what is open already;
others fail with EPERM. It holds for all threads until the process ends, whatever code runs in it. No thread can be
started afterwards.
"""

import ctypes
import errno
import platform
import struct
import sys

_CALLS = {
    "x86_64": (
        0xC000003E,
        # read write close fstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
        *(0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        # stat lstat pread64 readv writev select sched_yield mremap madvise nanosleep getitimer setitimer getpid exit
        *(4, 6, 17, 19, 20, 23, 24, 25, 28, 35, 36, 38, 39, 60),
        # gettimeofday getrusage times sigaltstack gettid time futex restart_syscall clock_gettime clock_getres
        *(96, 98, 100, 131, 186, 201, 202, 219, 228, 229),
        # clock_nanosleep exit_group newfstatat getrandom membarrier statx rseq
        *(230, 231, 262, 318, 324, 332, 334),
    ),
    "aarch64": (
        0xC00000B7,
        # write read close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
        *(64, 63, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139),
        # pread64 readv writev sched_yield mremap madvise nanosleep getitimer setitimer getpid exit
        *(67, 65, 66, 124, 216, 233, 101, 102, 103, 172, 93),
        # gettimeofday getrusage times sigaltstack gettid futex restart_syscall clock_gettime clock_getres
        *(169, 165, 153, 132, 178, 98, 128, 113, 114),
        # clock_nanosleep exit_group newfstatat getrandom membarrier statx rseq
        *(115, 94, 79, 278, 283, 291, 293),
    ),
}
"""For each machine its number in AUDIT_ARCH, and the calls that pass; without prlimit64, no limit can be raised."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVILEGES = 38  # of prctl
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seal() -> str:
    """Seals the process; what it will import must be imported.

    Returns:
        Why the system does not do it; empty: it is sealed.
    """
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return f"there is no filter of system calls for {sys.platform} on {platform.machine()}"
    machine, *calls = _CALLS[platform.machine()]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _ERROR | errno.EPERM), (_LOAD, 0, 0, 0)]
    for call in calls:
        steps += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _ERROR | errno.EPERM))
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"prctl: {errno.errorcode.get(ctypes.get_errno())}"
    program = ctypes.byref(_Program(len(steps), code))
    if library.syscall(_SECCOMP[platform.machine()], _FILTER, _ALL_THREADS, program):
        return f"seccomp: {errno.errorcode.get(ctypes.get_errno())}"
    return ""
