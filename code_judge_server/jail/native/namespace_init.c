// Creates the namespaces of jobs: a helper that lives as long as its slot, and clones one init per job.
//
// A request of the slot (struct request on the socket that argv names) is answered by two of struct reply, in any order: one of the
// helper with the pidfd of the new init, one of the init when its mounts are there. The init is pid 1 of the job's namespaces
// and a child of the slot (CLONE_PARENT), which kills it to end the job and reaps it to know that nothing is left. As a process of
// its own this costs 0.1 ms, where a fork of the slot's interpreter costs milliseconds; `python_init` does the same without a compiler.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 100000  // the shortest slice that Linux gives
#define MEMINFO_MAX_BYTES 1024  // as in jail_root.py

static int slot;  // the socket
static char **shown;  // folders below /tmp that every job sees in its own /tmp, then a null

struct request {
    uint64_t disk_bytes, inodes;
    uint32_t uid, gid, namespaces, proc_flags;  // the last are flags of mount(2)
};

struct message {
    struct request job;
    char meminfo[MEMINFO_MAX_BYTES];  // content of the job's /proc/meminfo, up to the end of the message
};

struct reply {
    int32_t pid;   // of the init, as the slot sees it; 0 from the init itself
    int32_t step;  // of make_mounts that failed, 0 if none did; -1: clone
    int32_t error;
};

struct attributes {  // struct sched_attr of sched_setattr(2), in its first version
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

// Lets this process and its inits run soon after they wake up: they do little at a time, and a job or its end waits for them.
// Since Linux 6.12 short slices give earlier deadlines, and no larger share; on older kernels they change nothing.
static void request_short_slices(void) {
    if (sched_getscheduler(0) != SCHED_OTHER) return;
    struct attributes attributes = {.size = sizeof attributes, .policy = SCHED_OTHER, .runtime = SLICE_NS};
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void answer(struct reply reply, int pidfd) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } ancillary = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec data = {&reply, sizeof reply};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (pidfd >= 0) {
        memcpy(CMSG_DATA(&ancillary.header), &pidfd, sizeof pidfd);
        message.msg_control = &ancillary;
        message.msg_controllen = sizeof ancillary;
    }
    if (sendmsg(slot, &message, MSG_NOSIGNAL) < 0) _exit(1);
}

static int folder(const char *path, mode_t mode, const struct request *job) {
    return mkdir(path, 0700) || chown(path, job->uid, job->gid) || chmod(path, mode);
}

// Shows a folder of the jail root's /tmp in the job's, which is to be mounted over it.
static int show(const char *path) {
    char target[4096];
    int length = snprintf(target, sizeof target, "/sandbox%s", path);
    if (length >= (int)sizeof target) return errno = ENAMETOOLONG, -1;
    for (char *slash = target + sizeof "/sandbox/tmp/" - 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(target, 0755) && errno != EEXIST) return -1;
    }
    if (mkdir(target, 0755) && errno != EEXIST) return -1;
    return mount(path, target, NULL, MS_BIND | MS_REC, NULL);
}

// Leaves of a whole /proc the processes of the job, its own meminfo, and the cpuinfo of the jail root: the kernel makes no files in
// a /proc of processes only, but what is mounted over one that it had before stays.
static int limit_proc(unsigned long flags, const char *meminfo, size_t bytes) {
    const unsigned long safe = MS_NOSUID | MS_NODEV;
    int file = open("/sandbox/meminfo", O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
    if (file < 0 || write(file, meminfo, bytes) != (ssize_t)bytes || close(file)) return -1;
    return mount("/sandbox/meminfo", "/proc/meminfo", NULL, MS_BIND, NULL) ||
           mount(NULL, "/proc/meminfo", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | safe, NULL) ||
           mount("/run/cpuinfo", "/proc/cpuinfo", NULL, MS_BIND, NULL) ||
           mount("proc", "/proc", "proc", flags | MS_REMOUNT, "subset=pid");
}

// One tmpfs holds the work folder, /tmp and /dev/shm, so that they share the quota; its root is hidden below the work folder.
static int make_mounts(const struct message *message, size_t meminfo_bytes) {
    const struct request *job = &message->job;
    char options[128];
    const unsigned long flags = MS_NOSUID | MS_NODEV, flags_of_proc = flags | MS_NOEXEC | job->proc_flags;
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=0755", (unsigned long long)job->disk_bytes,
             (unsigned long long)job->inodes);
    if (mount("proc", "/proc", "proc", flags_of_proc, NULL)) return 1;
    if (mount("tmpfs", "/sandbox", "tmpfs", flags, options)) return 2;
    if (folder("/sandbox/tmp", 01777, job) || folder("/sandbox/shm", 01777, job) || folder("/sandbox/work", 0755, job)) return 3;
    if (limit_proc(flags_of_proc, message->meminfo, meminfo_bytes)) return 4;
    for (char **path = shown; *path; path++)
        if (show(*path)) return 5;
    if (mount("/sandbox/tmp", "/tmp", NULL, MS_BIND | MS_REC, NULL)) return 5;
    if (mount("/sandbox/shm", "/dev/shm", NULL, MS_BIND, NULL)) return 6;
    if (mount("/sandbox/work", "/sandbox", NULL, MS_BIND, NULL)) return 7;
    return 0;
}

static void be_init(const struct message *message, size_t meminfo_bytes) {
    sigset_t signals;
    sigfillset(&signals);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int step = make_mounts(message, meminfo_bytes);
    answer((struct reply){0, step, step ? errno : 0}, -1);
    close(slot);
    for (siginfo_t signal;;) {
        int reaped = 0;  // orphans may come as fast as they are reaped: check for the signal in between
        while (reaped < 64 && waitpid(-1, NULL, WNOHANG) > 0) reaped++;
        const struct timespec no_time = {0};
        int number = reaped < 64 ? sigwaitinfo(&signals, &signal) : sigtimedwait(&signals, &signal, &no_time);
        if (number == SIGTERM && signal.si_pid == 0) break;  // sent from outside, and so by the slot
    }
    // The kernel would also do this when the init ends, but would lose the CPU time of the killed processes.
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) continue;
    _exit(0);
}

int main(int argc, char **argv) {
    struct message message;
    ssize_t bytes;
    if (argc < 2) return 1;
    slot = atoi(argv[1]);
    shown = argv + 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    request_short_slices();
    while ((bytes = recv(slot, &message, sizeof message, 0)) >= (ssize_t)sizeof message.job) {
        int pidfd = -1;
        unsigned long flags = message.job.namespaces | CLONE_PARENT | CLONE_PIDFD | SIGCHLD;
        long pid = syscall(SYS_clone, flags, 0, &pidfd, 0, 0);  // x86_64 and aarch64 agree on the first three
        if (pid == 0) be_init(&message, bytes - sizeof message.job);
        answer((struct reply){pid, pid < 0 ? -1 : 0, pid < 0 ? errno : 0}, pidfd);
        if (pidfd >= 0) close(pidfd);
    }
    return 0;
}
