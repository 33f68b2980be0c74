// Takes a snapshot, changes everything, and has a fork resume it: prints what the fork finds, a word a line.

#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snapshot.h"

#define PAGE 4096
#define BIG (3 << 20)

extern char end;  // of this program's variables, the snapshot's own among them

static char *pages(void *at, size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
    return mmap(at, size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void say(const char *name, int is_so) {
    printf("%s %s\n", name, is_so ? "yes" : "no");
}

// Whether the file of the snapshot has neither holes nor room behind its end, in which a job could leave pages.
static int is_whole_file(void) {
    struct stat status;
    char path[64], target[64] = "";
    for (int file = 3; file < 64; file++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, "memfd:snapshot")) continue;
        return fstat(file, &status) == 0 && status.st_size > BIG && status.st_blocks * 512 >= status.st_size;
    }
    return 0;
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    const size_t page = sysconf(_SC_PAGESIZE);
    char *neighbour = pages((char *)(((unsigned long)&end + page - 1) & -page), 16 * page);
    char *wiped = pages(NULL, page), *small = malloc(100), *big = malloc(BIG), *unused = pages(NULL, BIG);
    char *guarded = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *alone = guarded + page;
    volatile int local = 1;
    if (mprotect(alone, page, PROT_READ | PROT_WRITE)) return 2;
    if (neighbour == MAP_FAILED || madvise(wiped, page, MADV_WIPEONFORK)) return 2;
    *neighbour = *wiped = *alone = 1;
    strcpy(small, "before");
    memset(big, 1, BIG);

    int resumed = snapshot_take();
    if (resumed < 0) return perror("snapshot_take"), 3;
    if (resumed) {
        const char *message = snapshot_message();
        say("alone", *alone == 1);
        say("local", local == 1);
        say("neighbour", *neighbour == 1);
        say("small", strcmp(small, "before") == 0);
        say("big", big[0] == 1 && big[BIG - 1] == 1);
        say("unused", unused[0] == 0 && unused[BIG - 1] == 0);
        say("wiped", *wiped == 0);
        say("message", strcmp(message, "two") == 0 && memcmp(message + 4, "\0\0\0\0\0", 5) == 0);
        char *grown = realloc(big, 64 * BIG);
        memset(grown + BIG, 2, 63 * BIG);
        say("grown", grown[0] == 1 && grown[64 * BIG - 1] == 2);
        char *fresh = calloc(1, 5 << 20);
        int is_zero = 1;
        for (int at = 0; at < 5 << 20; at += PAGE) is_zero &= fresh[at] == 0;
        say("fresh", is_zero);
        fflush(stdout);
        _exit(0);
    }

    local = 2;
    *alone = *neighbour = *wiped = unused[0] = unused[BIG - 1] = 2;
    strcpy(small, "after");
    memset(big, 2, BIG);
    for (int number = 0; number < 20000; number++) memset(malloc(100), 3, 100);  // the heap grows
    say("whole", is_whole_file());
    fflush(stdout);
    if (snapshot_keep_from_forks(1)) return 4;
    for (int number = 0; number < 2; number++) {
        int status;
        const char *message = number ? "two" : "the first";
        pid_t pid = snapshot_fork(message, strlen(message) + 1);
        if (pid == 0) {
            if (number == 0) _exit(0);
            if (snapshot_restore()) _exit(5);
            snapshot_resume();
        }
        if (waitpid(pid, &status, 0) != pid || status) return printf("status %d\n", status), 6;
    }
    return *alone == 2 && big[0] == 2 ? 0 : 7;
}
