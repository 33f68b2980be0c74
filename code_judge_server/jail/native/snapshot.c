// A snapshot of this process's memory, from which its forks continue.
//
// The cost of an interpreter's fork is memory: page tables to copy and to free, and pages to copy that the child or the parent
// writes to. So slots fork without their memory. The child maps the file of the snapshot in its place, privately, which takes no
// page tables until it touches something, and returns once more from snapshot_take, as setjmp returns again, but with all memory as
// it was then. The parent's pages stay its own, and what it has learnt since no child sees.
//
// Left alone are what nobody writes to, the pages of the variables here, and those with the beginning of the thread's block, where its
// id and its thread-specific values are. So from the snapshot to the fork nothing may change those, as `os.fork` does in its child.
//
// The file has no holes and no room behind its end: a page that a job made there would stay, for others to find.

#define _GNU_SOURCE
#include "snapshot.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE  // headers older than Linux 6.1
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ  // older than Linux 5.14
#define MADV_POPULATE_READ 22
#endif
#define PAGE_BYTES 4096UL  // the smallest page size
#define HUGE_BYTES (2UL << 20)
#define BLOCK_BYTES (512UL << 10)
#define MIN_MAPPED_BYTES (64UL << 10)  // smaller regions are compared and copied back, which is faster than a mapping
#define MAX_MESSAGE_BYTES (4UL << 20)
#define MAX_REGIONS 2048
#define THREAD_BYTES 1024UL  // of a thread's block, in which the kernel puts the thread's id
#define MAX_SMAPS_BYTES (8UL << 20)

extern void *__libc_stack_end;

struct range {
    char *start, *end;
};

enum kind {
    COPIED,  // restored from `copies`, where it differs
    IN_FILE,
    UNUSED,  // all zeros, such as unused buffers
    NUM_KINDS
};

struct region {
    char *start;
    size_t size;
    off_t offset;  // offset among the regions of its kind
    enum kind kind;
};

static struct {
    jmp_buf resume;
    int file;
    void *brk;
    char *stack, *stack_copy, *copies;
    size_t stack_size;
    struct region regions[MAX_REGIONS], *end;
    char *message;
    size_t message_size;
} snapshot;  // its pages are in no region: forks see its current contents

static int add_region(struct range range, enum kind kind) {
    if (snapshot.end == snapshot.regions + MAX_REGIONS) return errno = E2BIG, -1;
    if (((uintptr_t)range.start | (uintptr_t)range.end) & (sysconf(_SC_PAGESIZE) - 1)) return errno = EINVAL, -1;
    *snapshot.end++ = (struct region){.start = range.start, .size = range.end - range.start, .kind = kind};
    return 0;
}

// Returns the end of the run that is all used, or all unused; whole blocks except for the last.
static char *end_of_run(struct range range, enum kind *kind) {
    char *at = range.start;
    for (size_t size; at < range.end; at += size) {
        size = (size_t)(range.end - at) < BLOCK_BYTES ? (size_t)(range.end - at) : BLOCK_BYTES;
        int is_zero = size == BLOCK_BYTES && *at == 0 && memcmp(at, at + 1, size - 1) == 0;
        enum kind found = is_zero ? UNUSED : IN_FILE;
        if (at == range.start) *kind = found;
        if (found != *kind) break;
    }
    return at;
}

static int holds(struct range range, const void *address) {
    return range.start <= (const char *)address && (const char *)address < range.end;
}

static int add_regions_of(struct range range, int is_executable) {
    const size_t size = range.end - range.start;
    // Some pages cannot be read, such as the guards of stacks; kernels that do not know the question have no such pages.
    if (madvise(range.start, size, MADV_POPULATE_READ) && errno != EINVAL) return -1;
    // Memory that a fork uses before the rest is restored must never be missing.
    const int is_needed = holds(range, &environ) || holds(range, stdout) || is_executable;
    if (is_needed || size < MIN_MAPPED_BYTES) return add_region(range, COPIED);
    enum kind kind = UNUSED;
    for (char *end; range.start < range.end; range.start = end) {
        end = end_of_run(range, &kind);
        if (add_region((struct range){range.start, end}, kind)) return -1;
    }
    return 0;
}

// Adds the parts of a range outside the holes.
static int add_around(struct range range, const struct range *holes, int num_holes, int is_executable) {
    for (; num_holes > 0; holes++, num_holes--) {
        if (range.end <= holes->start || holes->end <= range.start) continue;
        const struct range before = {range.start, holes->start};
        if (before.start < before.end && add_around(before, holes + 1, num_holes - 1, is_executable)) return -1;
        if (range.end <= holes->end) return 0;
        range.start = holes->end;
    }
    return range.start < range.end ? add_regions_of(range, is_executable) : 0;
}

static struct range pages_of(const void *start, size_t size) {
    const size_t page = sysconf(_SC_PAGESIZE);
    return (struct range){(char *)((uintptr_t)start & -page), (char *)(((uintptr_t)start + size + page - 1) & -page)};
}

static int has_thread_id(const char *thread) {
    const pid_t id = syscall(SYS_gettid);
    for (size_t at = 0; at < THREAD_BYTES; at += sizeof id)
        if (memcmp(thread + at, &id, sizeof id) == 0) return 1;
    return 0;
}

// Adds the mappings in /proc/self/smaps that only this process may write to, and that forks inherit.
static int add_regions(char *line) {
    char *thread = (char *)pthread_self();  // the block's address in the known C libraries
    const struct range holes[] = {pages_of(&snapshot, sizeof snapshot), pages_of(thread, THREAD_BYTES)};
    struct range range = {NULL, NULL};
    if (!has_thread_id(thread)) return errno = ENOTSUP, -1;
    int is_executable = 0;
    for (char *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        next[-1] = 0;
        if (!strncmp(line, "VmFlags:", 8)) {
            // Not mappings that the kernel empties in forks or at any time, such as the state of random numbers.
            int is_kept = range.start != NULL && !strstr(line, " wf") && !strstr(line, " dp");
            if (is_kept && add_around(range, holes, 2, is_executable)) return -1;
        } else if (*line >= 'a' || (*line >= '0' && *line <= '9')) {
            char *rights;
            range.start = (char *)strtoul(line, &rights, 16);
            range.end = (char *)strtoul(rights + 1, &rights, 16);
            is_executable = rights[3] == 'x';
            if (rights[2] != 'w' || rights[4] != 'p' || strstr(rights, "[stack]")) range.start = NULL;
        }
    }
    return 0;
}

static int read_smaps(char *text) {
    int file = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got;
    if (file < 0) return -1;
    while ((got = read(file, text + length, MAX_SMAPS_BYTES - 1 - length)) > 0) length += got;
    close(file);
    if (length == MAX_SMAPS_BYTES - 1) return errno = E2BIG, -1;
    text[length] = 0;
    return got;
}

static int find_regions(void) {
    snapshot.end = snapshot.regions;
    char *text = mmap(NULL, MAX_SMAPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);  // so no region
    if (text == MAP_FAILED) return -1;
    int failed = read_smaps(text) || add_regions(text);
    munmap(text, MAX_SMAPS_BYTES);
    return failed ? -1 : 0;
}

static int write_all(const char *from, size_t size, off_t offset) {
    for (ssize_t written; size > 0; from += written, offset += written, size -= written) {
        written = pwrite(snapshot.file, from, size, offset);
        if (written == 0) errno = EIO;
        if (written <= 0) return -1;
    }
    return 0;
}

// Puts the file in huge pages, so that many pages are mapped at once. Best effort.
static void use_huge_pages(size_t size) {
    char *room = mmap(NULL, size + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return;
    char *aligned = (char *)(((uintptr_t)room + HUGE_BYTES - 1) & -HUGE_BYTES);
    if (mmap(aligned, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, snapshot.file, 0) == aligned)
        for (size_t at = 0; at < size; at += HUGE_BYTES) madvise(aligned + at, HUGE_BYTES, MADV_COLLAPSE);
    munmap(room, size + HUGE_BYTES);
}

// Maps a region as it was.
static int map(const struct region *region) {
    const int is_unused = region->kind == UNUSED, flags = MAP_PRIVATE | MAP_FIXED | (is_unused ? MAP_ANONYMOUS : 0);
    const int file = is_unused ? -1 : snapshot.file;
    void *got = mmap(region->start, region->size, PROT_READ | PROT_WRITE, flags, file, is_unused ? 0 : region->offset);
    return got == MAP_FAILED ? -1 : 0;
}

// Gives every region its offset among those of its kind, and makes room for the copies, the stack's, and the message.
static int make_room(size_t sizes[NUM_KINDS]) {
    for (struct region *region = snapshot.regions; region < snapshot.end; region++) {
        region->offset = sizes[region->kind];
        sizes[region->kind] += region->size;
    }
    const size_t size = MAX_MESSAGE_BYTES + sizes[COPIED] + snapshot.stack_size;
    // All here and now, so that it lies nowhere where a region is mapped again.
    snapshot.message = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (snapshot.message == MAP_FAILED) return -1;
    snapshot.copies = snapshot.message + MAX_MESSAGE_BYTES;
    snapshot.stack_copy = snapshot.copies + sizes[COPIED];
    return 0;
}

static int fill_file(size_t size) {
    const size_t whole = (size + HUGE_BYTES - 1) & -HUGE_BYTES;
    static const char zeros[64 << 10];
    for (struct region *region = snapshot.regions; region < snapshot.end; region++)
        if (region->kind == IN_FILE && write_all(region->start, region->size, region->offset)) return -1;
    for (size_t at = size, rest; at < whole; at += rest) {
        rest = whole - at < sizeof zeros ? whole - at : sizeof zeros;
        if (write_all(zeros, rest, at)) return -1;
    }
    use_huge_pages(whole);
    return fcntl(snapshot.file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
}

// A separate function, so that the stack from here on holds the whole frame of the function that returns again.
static __attribute__((noinline)) int keep_memory(void) {
    size_t sizes[NUM_KINDS] = {0};
    snapshot.brk = (void *)syscall(SYS_brk, 0);
    snapshot.stack = __builtin_frame_address(0);
    snapshot.stack_size = (char *)__libc_stack_end - snapshot.stack;
    if (find_regions() || make_room(sizes)) return -1;
    memcpy(snapshot.stack_copy, snapshot.stack, snapshot.stack_size);
    for (struct region *region = snapshot.regions; region < snapshot.end; region++)
        if (region->kind == COPIED) memcpy(snapshot.copies + region->offset, region->start, region->size);
    if (fill_file(sizes[IN_FILE])) return -1;
    for (struct region *region = snapshot.regions; region < snapshot.end; region++)
        if (region->kind == IN_FILE && map(region)) abort();  // half of the memory is gone
    return 0;
}

int snapshot_take(void) {
    snapshot.file = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (snapshot.file < 0) return -1;
    if (_setjmp(snapshot.resume)) return 1;
    if (keep_memory() == 0) return 0;
    const int error = errno;
    close(snapshot.file);
    return errno = error, -1;
}

int snapshot_keep_from_forks(int kept) {
    const int advice = kept ? MADV_DONTFORK : MADV_DOFORK;
    for (struct region *region = snapshot.regions; region < snapshot.end; region++)
        if (region->kind != COPIED && madvise(region->start, region->size, advice) && errno != ENOMEM)  // part is unmapped
            return -1;
    return 0;
}

pid_t snapshot_fork(const void *message, size_t size) {
    if (size > MAX_MESSAGE_BYTES) return errno = E2BIG, -1;
    memcpy(snapshot.message, message, size);
    if (size < snapshot.message_size) memset(snapshot.message + size, 0, snapshot.message_size - size);
    snapshot.message_size = size;
    return _Fork();  // not `fork`: its handlers may be in memory that the child lacks
}

const void *snapshot_message(void) {
    return snapshot.message;
}

// Does not write to unchanged pages, as the kernel would copy them.
static void copy_back(char *to, const char *from, size_t size) {
    for (size_t at = 0; at < size; at += PAGE_BYTES)
        if (memcmp(to + at, from + at, PAGE_BYTES)) memcpy(to + at, from + at, PAGE_BYTES);
}

int snapshot_restore(void) {
    // The allocator assumes that new memory of the system is zeroed.
    if ((void *)syscall(SYS_brk, 0) != snapshot.brk && (void *)syscall(SYS_brk, snapshot.brk) != snapshot.brk)
        return errno = ENOMEM, -1;
    for (struct region *region = snapshot.regions; region < snapshot.end; region++) {
        if (region->kind == COPIED) copy_back(region->start, snapshot.copies + region->offset, region->size);
        else if (map(region)) return -1;
    }
    if (!has_thread_id((char *)pthread_self())) return errno = ENOTSUP, -1;  // this fork's own, which must still be there
    return 0;
}

static _Noreturn __attribute__((noinline)) void overwrite_stack(void) {
    memcpy(snapshot.stack, snapshot.stack_copy, snapshot.stack_size);
    _longjmp(snapshot.resume, 1);
}

_Noreturn void snapshot_resume(void) {
    char *here = __builtin_frame_address(0), *wanted = snapshot.stack - PAGE_BYTES;
    volatile char *room = alloca(here > wanted ? here - wanted : 1);  // the frames of what follows are not to be overwritten
    *room = 0;
    overwrite_stack();
}
