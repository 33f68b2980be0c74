// Forks a slot and turns the fork into a job: a library that slots call. Without it, `slot` does the same in Python.
//
// In the interpreter this takes longer than a small program itself.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snapshot.h"

#ifndef SYS_close_range  // headers older than Linux 5.9; the numbers are the same on every architecture
#define SYS_close_range 436
#endif
#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif
#define FIRST_UNNEEDED_DESCRIPTOR 3
#define FOLDER "/sandbox"
#define MAX_TRIAL_S 5

struct limit {
    uint64_t kind, soft, hard;  // of setrlimit(2)
};

// `job_start.START`; the sizes of the files, the limits and the program's arguments follow.
struct start {
    int64_t uid;           // -1: the job keeps this process's user, without capabilities
    int32_t init;          // pidfd of the first process of the job's namespaces
    int32_t ruleset;       // Landlock ruleset; -1: none
    int32_t oom_score_adj;
    int32_t contents;      // memfd: the files one after the other, then their names, each with a null behind it
    int32_t standard[3];   // stdin, stdout, stderr
    int32_t report;        // receives the error
    uint32_t num_files, num_limits;
    uint64_t num_arguments_bytes;
};

static const uint64_t *file_sizes(const struct start *job) {
    return (const uint64_t *)(job + 1);
}

static const struct limit *limits(const struct start *job) {
    return (const struct limit *)(file_sizes(job) + job->num_files);
}

static int put_oom_score(int adjustment) {
    char text[16];
    int length = snprintf(text, sizeof text, "%d", adjustment);
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, length) != length) return -1;
    return close(file);
}

static int become_user(int64_t uid) {
    if (uid != -1) return syscall(SYS_setresuid, uid, uid, uid);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capset, &header, none);
}

static int make_folders(char *path) {
    for (char *slash = path; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(path, 0777) && errno != EEXIST) return -1;
    }
    return 0;
}

static int write_file(char *path, int contents, off_t *offset, uint64_t size) {
    if (make_folders(path)) return -1;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (file < 0) return -1;
    for (const uint64_t end = *offset + size; (uint64_t)*offset < end;) {
        ssize_t copied = sendfile(file, contents, offset, end - *offset);
        if (copied == 0) errno = EIO;  // the file is shorter than announced
        if (copied <= 0) return -1;
    }
    return close(file);
}

// Writes the files below the current folder, executable; their names follow them.
static int write_files(const struct start *job) {
    struct stat status;
    off_t offset = 0, names_at = 0;
    if (job->num_files == 0) return 0;
    for (uint32_t number = 0; number < job->num_files; number++) names_at += file_sizes(job)[number];
    if (fstat(job->contents, &status)) return -1;
    if (status.st_size < names_at) return errno = EIO, -1;
    size_t length = status.st_size - names_at;
    char *names = malloc(length + 1);
    if (names == NULL || pread(job->contents, names, length, names_at) != (ssize_t)length) return -1;
    names[length] = 0;
    char *name = names;
    for (uint32_t number = 0; number < job->num_files; number++, name += strlen(name) + 1) {
        if (name >= names + length) return errno = EIO, -1;
        if (write_file(name, job->contents, &offset, file_sizes(job)[number])) return -1;
    }
    free(names);
    return 0;
}

static int take_standard_descriptors(const struct start *job) {
    for (int target = 0; target < 3; target++)
        if (dup2(job->standard[target], target) < 0) return -1;
    return 0;
}

static int set_limits(const struct start *job) {
    for (uint32_t number = 0; number < job->num_limits; number++) {
        const struct rlimit limit = {limits(job)[number].soft, limits(job)[number].hard};
        if (setrlimit(limits(job)[number].kind, &limit)) return -1;
    }
    return 0;
}

// Returns the step that failed, or null.
static const char *be_job(const struct start *job) {
    if (put_oom_score(job->oom_score_adj)) return "oom_score_adj";
    if (setns(job->init, CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)) return "setns";
    if (chdir(FOLDER)) return FOLDER;
    if (set_limits(job)) return "setrlimit";
    if (become_user(job->uid)) return "become user";
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) return "dumpable";  // otherwise it may not open its own /proc/self/fd
    if (write_files(job)) return "files";
    if (take_standard_descriptors(job)) return "standard descriptors";
    if (setsid() < 0) return "setsid";
    if (job->ruleset >= 0 && syscall(SYS_landlock_restrict_self, job->ruleset, 0)) return "landlock";
    if (syscall(SYS_close_range, FIRST_UNNEEDED_DESCRIPTOR, ~0U, 0)) return "close_range";
    return NULL;
}

// Returns the arguments of this job's program.
const char *job_arguments(uint64_t *size) {
    const struct start *job = snapshot_message();
    *size = job->num_arguments_bytes;
    return (const char *)(limits(job) + job->num_limits);
}

static int comes_through(void) {
    const struct start none = {0};
    int status;
    pid_t pid = snapshot_fork(&none, sizeof none);
    if (pid == 0) {
        alarm(MAX_TRIAL_S);
        if (snapshot_restore()) _exit(1);
        snapshot_resume();
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

// Returns whether a fork that continues from the snapshot, without arguments, exits with 0; -1 if forks stay without memory.
int try_snapshot(void) {
    const int has_come = snapshot_keep_from_forks(1) == 0 && comes_through();
    return snapshot_keep_from_forks(0) ? -1 : has_come;
}

// Returns the process id of the job, or -1; the job itself continues from the snapshot.
int start_job(const void *start, size_t size) {
    pid_t pid = snapshot_fork(start, size);
    if (pid != 0) return pid;
    const struct start *job = snapshot_message();
    if (snapshot_restore()) {  // only a constant text: the C library may not work here
        static const char text[] = "job: the snapshot cannot be mapped";
        _exit(write(job->report, text, sizeof text - 1) < 0 ? 2 : 1);
    }
    const char *failed = be_job(job);
    if (failed == NULL) snapshot_resume();
    char text[256];
    int length = snprintf(text, sizeof text, "job: %s: %s", failed, strerror(errno));
    if (write(job->report, text, length) < 0) _exit(2);
    _exit(1);
}
