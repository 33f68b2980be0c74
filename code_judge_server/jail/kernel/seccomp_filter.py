"""The system calls that jobs may make, as BPF instructions: compiled in the server by libseccomp, put on by each slot.

The filter is an allow-list. Other calls fail with ENOSYS, which programs are prepared for; calls that would reach out of the
job fail with EPERM. The only sockets allowed are those of AF_UNIX and, where the network is the slot's own, of TCP and UDP.

Jobs of a judge that is not root have its user, and share with it everything that the kernel counts by user machine-wide.
"""

import errno
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyseccomp

_ALLOWED = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir clock_getres clock_gettime clock_nanosleep close
close_range connect copy_file_range creat dup dup2 dup3 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fdatasync
fgetxattr flistxattr flock fork fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake
get_mempolicy get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid
gettimeofday getuid getxattr ioctl ioprio_get kill lgetxattr link linkat listen listxattr llistxattr lseek lstat madvise
map_shadow_stack mbind membarrier mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mprotect mremap mseal msync
munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readahead readlink
readlinkat readv recvfrom recvmmsg recvmsg rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_yield
select sendfile sendmmsg sendmsg sendto set_mempolicy set_robust_list set_tid_address setfsgid setfsuid setgid setgroups
setitimer setpgid setregid setresgid setresuid setreuid setrlimit setsid setuid shutdown sigaltstack signalfd signalfd4 stat
statfs statx symlink symlinkat sync_file_range sysinfo tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat vfork wait4
waitid write writev
"""
_FOR_THE_SLOT = "landlock_add_rule landlock_create_ruleset landlock_restrict_self setns"
"""Calls that only the slot needs, as it runs under the filter too. A job has no right to join a namespace, and Landlock only
ever takes rights away.
"""
_WITH_MEMORY_GROUP = (
    "memfd_create mmap msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget"
    " splice tee vmsplice"
)
"""Allowed where a control group counts memory: elsewhere nothing counts the memory that these calls keep unmapped."""
_WITH_OWN_USERS = "epoll_create epoll_create1"
"""Allowed where jobs have users of their own: a user's watches are limited over all of its processes, and a server that may
watch no more connections dies.
"""
_CHANGE_MODES = "chmod fchmod fchmodat fchmodat2 futimesat utime utimensat utimes"
_CHANGE_OWNERS = "chown fchown fchownat fremovexattr fsetxattr lchown lremovexattr lsetxattr removexattr setxattr"
"""Landlock does not govern either group, and only a mount namespace keeps these calls from other files of the same user."""
_TAKE_A_PROCESS = {
    "prlimit64": {0: 0},
    "sched_setaffinity": {0: 0},
    "sched_setattr": {0: 0},
    "sched_setparam": {0: 0},
    "sched_setscheduler": {0: 0},
    "setpriority": {0: 0, 1: 0},
    "ioprio_set": {0: 1, 1: 0},
}
"""Positions, per call, of the arguments by which it affects only the caller."""
_WITHOUT_EFFECT = "sync syncfs"
"""These wait for the whole machine's disks; a job's own files are in memory."""
_NOT_PERMITTED = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig
fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
kexec_load keyctl lookup_dcookie mount mount_setattr move_mount move_pages migrate_pages name_to_handle_at
open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv
process_vm_writev ptrace quotactl reboot request_key setdomainname sethostname settimeofday swapoff swapon syslog
umount2 unshare userfaultfd vhangup
"""
# CLONE_NEW* as clone(2) takes them; a filter cannot see those of clone3, so clone3 is absent.
_NAMESPACE_FLAGS = 0x7E020000
_MAP_SHARED, _MAP_PRIVATE, _MAP_DROPPABLE, _MAP_TYPE, _MAP_ANONYMOUS = 0x01, 0x02, 0x08, 0x0F, 0x20
_MAP_HUGETLB = 0x40000
SHARED_REGION_MAX_BYTES = 4 * 1024 * 1024
"""Largest mapping of shared anonymous memory where no group counts it; the meter of jobs charges this for each."""
_AF_UNIX = 1
_AF_OF_INTERNET = (2, 10)
_KIND_OF_SOCKET = 0x0F
"""Mask of the socket type; the other bits of that argument are flags."""
_SOCK_RAW = 3
_INTERNET_SOCKETS = {1: (0, 6), 2: (0, 17)}
"""Protocols by socket type, which is stream or datagram."""
_LOW_HALF = 0xFFFFFFFF
"""Mask of the bits that the kernel reads of a command or an option, so a rule compares only these."""
_FCNTL_COMMANDS = (*range(17), 36, 37, 38, 1025, 1027, 1028, 1030, 1032, 1033, 1034, *range(1035, 1039))
"""Commands for descriptors, their owners and signals, locks, pipes and seals. Not F_SETLEASE and F_NOTIFY, with which a job
could delay or watch others that open the same file.
"""
_F_REFUSED = (1024, 1026)
_F_SETPIPE_SZ = 1031
_SOL_SOCKET = 1
_INTERNET_OPTIONS = {0: (1, 2, 8, 10, 11, 24), 6: (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 18, 25), 41: (16, 23, 25, 26, 49, 67)}
"""Options that servers and clients set, by level (IP, TCP, IPv6): TCP_NODELAY, IPV6_V6ONLY, keep-alive times and the like. None
installs filters or loads modules.
"""
_SOCKET_OPTIONS = (1, 2, 6, 9, 10, 12, 13, 15, 16, 18, 20, 21, 29, 34, 35, 42, 63, 64, 65, 66, 67)
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and the two that need a capability."""
_QUERY_PERSONALITY = 0xFFFFFFFF
_BINARY_TREE = 2


class SeccompError(Exception):
    """The filter cannot be made: libseccomp is missing, or refuses."""


def open_filter(*, namespaces: bool, memory_group: bool, own_users: bool) -> int:
    """Return a memfd of the filter's BPF instructions.

    Args:
        namespaces: Slots have network namespaces, and jobs pid and mount namespaces; otherwise jobs get socket pairs only, as
            by a path or an abstract name they would reach this user's own servers.
        memory_group: Jobs have a control group that counts all of their memory.
        own_users: Jobs have users of their own.

    Raises:
        SeccompError: libseccomp is missing, or refuses.
    """
    try:
        import pyseccomp as libseccomp  # here, because it fails where the library is missing
    except (ImportError, OSError, RuntimeError) as error:
        raise SeccompError(f"seccomp: libseccomp.so.2 cannot be loaded: {error}. Install libseccomp2") from error
    try:
        rules = libseccomp.SyscallFilter(libseccomp.ERRNO(errno.ENOSYS))
        rules.set_attr(libseccomp.Attr.ACT_BADARCH, libseccomp.KILL_PROCESS)
        rules.set_attr(libseccomp.Attr.CTL_OPTIMIZE, _BINARY_TREE)
        known = _known(libseccomp)
        shares_files = not own_users and not namespaces
        actions = {
            libseccomp.ALLOW: (
                _ALLOWED,
                _FOR_THE_SLOT,
                _WITH_MEMORY_GROUP if memory_group else "",
                _WITH_OWN_USERS if own_users else "",
                "" if shares_files else f"{_CHANGE_MODES} {_CHANGE_OWNERS} {' '.join(_TAKE_A_PROCESS)}",
            ),
            libseccomp.ERRNO(errno.EPERM): (_NOT_PERMITTED, _CHANGE_OWNERS if shares_files else ""),
            # Programs copy modes and times along with files, and must not fail for it.
            libseccomp.ERRNO(0): (_WITHOUT_EFFECT, _CHANGE_MODES if shares_files else ""),
        }
        for action, lists in actions.items():
            for name in filter(known, " ".join(lists).split()):
                rules.add_rule(action, name)
        if shares_files:
            _add_rules_of_processes(rules, libseccomp)
        _add_conditional_rules(rules, libseccomp, own_network=namespaces)
        _add_rules_of_fcntl(rules, libseccomp, memory_group=memory_group)
        _add_rules_of_socket_options(rules, libseccomp, own_network=namespaces, memory_group=memory_group)
        if not memory_group:
            _add_rules_of_mmap(rules, libseccomp)
        with os.fdopen(os.memfd_create("seccomp"), "wb", closefd=False) as file:
            rules.export_bpf(file)
            return file.fileno()
    except OSError as error:
        raise SeccompError(f"seccomp: libseccomp cannot make the filter: {error}") from error


def _known(libseccomp: ModuleType) -> Callable[[str], bool]:
    """Return a test whether this library and processor know a system call: aarch64 has no `open`, older ones no `mseal`."""
    return lambda name: libseccomp.resolve_syscall(libseccomp.system_arch(), name) >= 0


def _add_conditional_rules(rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType, *, own_network: bool) -> None:
    argument = libseccomp.Arg
    rules.add_rule(libseccomp.ALLOW, "socketpair", argument(0, libseccomp.EQ, _AF_UNIX))
    rules.add_rule(libseccomp.ERRNO(errno.EAFNOSUPPORT), "socketpair", argument(0, libseccomp.NE, _AF_UNIX))
    rules.add_rule(libseccomp.ALLOW, "clone", argument(0, libseccomp.MASKED_EQ, _NAMESPACE_FLAGS, 0))
    if own_network:
        _add_rules_of_sockets(rules, libseccomp)
    else:
        rules.add_rule(libseccomp.ERRNO(errno.EAFNOSUPPORT), "socket")
    for value in (0, _QUERY_PERSONALITY):
        rules.add_rule(libseccomp.ALLOW, "personality", argument(0, libseccomp.EQ, value))


def _add_rules_of_sockets(rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType) -> None:
    argument = libseccomp.Arg
    rules.add_rule(libseccomp.ALLOW, "socket", argument(0, libseccomp.EQ, _AF_UNIX))
    families = (_AF_UNIX, *_AF_OF_INTERNET)
    for family in set(range(max(families))) - set(families):
        rules.add_rule(libseccomp.ERRNO(errno.EAFNOSUPPORT), "socket", argument(0, libseccomp.EQ, family))
    rules.add_rule(libseccomp.ERRNO(errno.EAFNOSUPPORT), "socket", argument(0, libseccomp.GT, max(families)))
    for family in _AF_OF_INTERNET:
        of_family = argument(0, libseccomp.EQ, family)
        raw = argument(1, libseccomp.MASKED_EQ, _KIND_OF_SOCKET, _SOCK_RAW)
        rules.add_rule(libseccomp.ERRNO(errno.EPERM), "socket", of_family, raw)
        for kind, protocols in _INTERNET_SOCKETS.items():
            of_kind = argument(1, libseccomp.MASKED_EQ, _KIND_OF_SOCKET, kind)
            for protocol in protocols:
                by_protocol = argument(2, libseccomp.EQ, protocol)
                rules.add_rule(libseccomp.ALLOW, "socket", of_family, of_kind, by_protocol)


def _add_rules_of_processes(rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType) -> None:
    """Allow changes of the caller itself, and of no other process of its user."""
    for name, only in _TAKE_A_PROCESS.items():
        passed = []
        for position, value in only.items():
            other = libseccomp.Arg(position, libseccomp.NE, value)
            rules.add_rule(libseccomp.ERRNO(errno.EPERM), name, *passed, other)
            passed.append(libseccomp.Arg(position, libseccomp.EQ, value))
        rules.add_rule(libseccomp.ALLOW, name, *passed)


def _add_rules_of_mmap(rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType) -> None:
    """Refuse large regions of memory that is both shared and anonymous: their contents stay as long as any page is mapped, and
    nothing counts them. For small regions the meter of jobs charges the most that they can hold.
    """
    length, flags = 1, 3
    for mask, value in ((_MAP_ANONYMOUS, 0), (_MAP_TYPE, _MAP_PRIVATE), (_MAP_TYPE, _MAP_DROPPABLE)):
        rules.add_rule(libseccomp.ALLOW, "mmap", libseccomp.Arg(flags, libseccomp.MASKED_EQ, mask, value))
    mask, value = _MAP_TYPE | _MAP_ANONYMOUS | _MAP_HUGETLB, _MAP_SHARED | _MAP_ANONYMOUS
    shared = libseccomp.Arg(flags, libseccomp.MASKED_EQ, mask, value)
    rules.add_rule(libseccomp.ALLOW, "mmap", libseccomp.Arg(length, libseccomp.LE, SHARED_REGION_MAX_BYTES), shared)
    large = libseccomp.Arg(length, libseccomp.GT, SHARED_REGION_MAX_BYTES)
    rules.add_rule(libseccomp.ERRNO(errno.EPERM), "mmap", large, shared)
    of_huge_pages = libseccomp.Arg(flags, libseccomp.MASKED_EQ, mask, value | _MAP_HUGETLB)
    rules.add_rule(libseccomp.ERRNO(errno.EPERM), "mmap", of_huge_pages)


def _add_rules_of_fcntl(rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType, *, memory_group: bool) -> None:
    """Allow the known commands; a larger pipe would be memory that no process has mapped."""
    command = 1
    for value in (*_FCNTL_COMMANDS, _F_SETPIPE_SZ) if memory_group else _FCNTL_COMMANDS:
        rules.add_rule(libseccomp.ALLOW, "fcntl", libseccomp.Arg(command, libseccomp.MASKED_EQ, _LOW_HALF, value))
    for value in _F_REFUSED if memory_group else (*_F_REFUSED, _F_SETPIPE_SZ):
        refused = libseccomp.Arg(command, libseccomp.MASKED_EQ, _LOW_HALF, value)
        rules.add_rule(libseccomp.ERRNO(errno.EPERM), "fcntl", refused)


def _add_rules_of_socket_options(
    rules: "pyseccomp.SyscallFilter", libseccomp: ModuleType, *, own_network: bool, memory_group: bool
) -> None:
    """Ignore requests for other buffer sizes where no group counts memory, so that buffers keep the size that the meter of jobs
    charges; like requests beyond the machine's limit, they have no effect.
    """
    buffers = libseccomp.ALLOW if memory_group else libseccomp.ERRNO(0)
    actions = {(_SOL_SOCKET, option): libseccomp.ALLOW for option in _SOCKET_OPTIONS}
    actions |= {(_SOL_SOCKET, option): buffers for option in _BUFFER_SIZES}
    if own_network:
        of_internet = _INTERNET_OPTIONS.items()
        actions |= {(level, option): libseccomp.ALLOW for level, options in of_internet for option in options}
    for (level, option), action in actions.items():
        of_level = libseccomp.Arg(1, libseccomp.MASKED_EQ, _LOW_HALF, level)
        rules.add_rule(action, "setsockopt", of_level, libseccomp.Arg(2, libseccomp.MASKED_EQ, _LOW_HALF, option))
