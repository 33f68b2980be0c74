// A snapshot of this process's memory, from which its forks go on.
//
// What a fork of an interpreter costs is memory: page tables to copy and to free, and pages to copy that the child or the parent
// writes to. So slots fork without their memory. The child maps the file of the snapshot in its place, privately, which takes no
// page tables until it touches something, and returns once more from snapshot_take, as setjmp returns again, but with all memory as
// it was then. The parent's pages stay its own, and what it has learnt since no child sees.
//
// Left alone are what nobody writes to, the library's own variables, and the thread's own block, which holds the thread's id. So
// from the snapshot to the fork nothing may change what is in that block: no thread-specific value, as `os.fork` does in its child.

#define _GNU_SOURCE
#include "snapshot.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE  // headers of before Linux 6.1
#define MADV_COLLAPSE 25
#endif
#define PAGE_BYTES 4096UL  // the least that there is; every size here is a multiple of the machine's own
#define HUGE_BYTES (2UL << 20)
#define BLOCK_BYTES (128UL << 10)
#define MIN_MAPPED_BYTES (64UL << 10)  // less is compared and copied back, which is quicker than a mapping
#define MAX_REGIONS 2048
#define MAX_MAPS_BYTES (2UL << 20)

extern void *__libc_stack_end;

struct region {
    char *start;
    size_t size;
    off_t offset;  // in the file; of what is copied back, in `copies`
    int is_mapped;
};

static struct {
    jmp_buf resume;
    int file;
    void *brk;
    char *stack, *stack_copy, *copies;
    size_t stack_size, num_regions;
    struct region regions[MAX_REGIONS];
    void *message;
    size_t message_room;
} snapshot;  // in a mapping that is no region: what it holds, forks see as it is

// Reads /proc/self/maps.
static int read_maps(char *text) {
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got;
    if (file < 0) return -1;
    while ((got = read(file, text + length, MAX_MAPS_BYTES - 1 - length)) > 0) length += got;
    close(file);
    if (length == MAX_MAPS_BYTES - 1) return errno = E2BIG, -1;
    text[length] = 0;
    return got;
}

static int add_region(char *start, char *end, int is_executable) {
    if (end <= start) return 0;
    if (snapshot.num_regions == MAX_REGIONS) return errno = E2BIG, -1;
    size_t size = end - start;
    snapshot.regions[snapshot.num_regions++] =
        (struct region){.start = start, .size = size, .is_mapped = size >= MIN_MAPPED_BYTES && !is_executable};
    return 0;
}

// Adds what lies outside of `hole`, if that lies in the region.
static int add_around(char *start, char *end, char *hole, char *hole_end, int is_executable) {
    if (end <= hole || hole_end <= start) return add_region(start, end, is_executable);
    return add_region(start, hole, is_executable) || add_region(hole_end, end, is_executable) ? -1 : 0;
}

// Adds what the lines of /proc/self/maps name that this process alone may write to.
static int add_regions(char *line) {
    char *own = (char *)&snapshot, *thread = (char *)((uintptr_t)__builtin_thread_pointer() & -PAGE_BYTES);
    for (char *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        next[-1] = 0;
        char *rights, *start = (char *)strtoul(line, &rights, 16);
        char *end = (char *)strtoul(rights + 1, &rights, 16);
        if (rights[2] != 'w' || rights[4] != 'p' || strstr(rights, "[stack]")) continue;
        if (start < own + sizeof snapshot && own < end) continue;
        if (add_around(start, end, thread - PAGE_BYTES, thread + 2 * PAGE_BYTES, rights[3] == 'x')) return -1;
    }
    return 0;
}

static int find_regions(void) {
    char *maps = mmap(NULL, MAX_MAPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);  // so no region
    if (maps == MAP_FAILED) return -1;
    int failed = read_maps(maps) || add_regions(maps);
    munmap(maps, MAX_MAPS_BYTES);
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

// Writes a region to the file, but for blocks of zeros, such as buffers that nobody has used yet: they stay holes.
static int write_region(const struct region *region) {
    for (size_t at = 0, size; at < region->size; at += size) {
        const char *block = region->start + at;
        size = region->size - at < BLOCK_BYTES ? region->size - at : BLOCK_BYTES;
        int is_zero = *block == 0 && memcmp(block, block + 1, size - 1) == 0;
        if (!is_zero && write_all(block, size, region->offset + at)) return -1;
    }
    return 0;
}

// Has the file lie in huge pages, where it has no holes: pages of it are then mapped many at once. Best effort.
static void use_huge_pages(size_t size) {
    char *room = mmap(NULL, size + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return;
    char *aligned = (char *)(((uintptr_t)room + HUGE_BYTES - 1) & -HUGE_BYTES);
    if (mmap(aligned, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, snapshot.file, 0) == aligned)
        for (size_t at = 0; at + HUGE_BYTES <= size; at += HUGE_BYTES)
            if (lseek(snapshot.file, at, SEEK_HOLE) >= (off_t)(at + HUGE_BYTES)) madvise(aligned + at, HUGE_BYTES, MADV_COLLAPSE);
    munmap(room, size + HUGE_BYTES);
}

static int map(const struct region *region) {
    const int flags = MAP_PRIVATE | MAP_FIXED;
    void *got = mmap(region->start, region->size, PROT_READ | PROT_WRITE, flags, snapshot.file, region->offset);
    return got == MAP_FAILED ? -1 : 0;
}

// Gives every region its place, in the file or among the copies; returns the sizes of both.
static void place_regions(size_t *in_file, size_t *in_copies) {
    *in_file = *in_copies = 0;
    for (size_t number = 0; number < snapshot.num_regions; number++) {
        struct region *region = snapshot.regions + number;
        size_t *end = region->is_mapped ? in_file : in_copies;
        region->offset = *end;
        *end += region->size;
    }
}

static int keep_regions(size_t file_size) {
    if (ftruncate(snapshot.file, file_size)) return -1;
    for (size_t number = 0; number < snapshot.num_regions; number++) {
        struct region *region = snapshot.regions + number;
        if (!region->is_mapped) memcpy(snapshot.copies + region->offset, region->start, region->size);
        else if (write_region(region)) return -1;
    }
    use_huge_pages(file_size);
    if (fcntl(snapshot.file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)) return -1;
    for (size_t number = 0; number < snapshot.num_regions; number++)
        if (snapshot.regions[number].is_mapped && map(snapshot.regions + number)) abort();  // half of the memory is gone
    return 0;
}

// A function of its own, so that the stack from here on holds the whole frame of the one that returns again.
static __attribute__((noinline)) int keep_memory(void) {
    size_t file_size, copies_size;
    if (find_regions()) return -1;
    place_regions(&file_size, &copies_size);
    snapshot.brk = (void *)syscall(SYS_brk, 0);
    snapshot.stack = __builtin_frame_address(0);
    snapshot.stack_size = (char *)__libc_stack_end - snapshot.stack;
    const size_t size = copies_size + snapshot.stack_size;
    snapshot.copies = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (snapshot.copies == MAP_FAILED) return -1;
    snapshot.stack_copy = memcpy(snapshot.copies + copies_size, snapshot.stack, snapshot.stack_size);
    return keep_regions(file_size);
}

int snapshot_take(void) {
    snapshot.file = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (snapshot.file < 0) return -1;
    if (_setjmp(snapshot.resume)) return 1;
    return keep_memory();
}

int snapshot_keep_from_forks(int kept) {
    for (size_t number = 0; number < snapshot.num_regions; number++) {
        const struct region *region = snapshot.regions + number;
        if (region->is_mapped && madvise(region->start, region->size, kept ? MADV_DONTFORK : MADV_DOFORK)) return -1;
    }
    return 0;
}

static int keep_message(const void *message, size_t size) {
    if (size > snapshot.message_room) {
        void *room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) return -1;
        if (snapshot.message_room > 0) munmap(snapshot.message, snapshot.message_room);
        snapshot.message = room;
        snapshot.message_room = size;
    }
    memcpy(snapshot.message, message, size);
    return 0;
}

pid_t snapshot_fork(const void *message, size_t size) {
    if (keep_message(message, size)) return -1;
    return _Fork();  // not `fork`: the handlers that it calls may be in memory that the child has not
}

const void *snapshot_message(void) {
    return snapshot.message;
}

// Writes to no page that is as it was, for the kernel would copy it.
static void copy_back(char *to, const char *from, size_t size) {
    for (size_t at = 0; at < size; at += PAGE_BYTES)
        if (memcmp(to + at, from + at, PAGE_BYTES)) memcpy(to + at, from + at, PAGE_BYTES);
}

int snapshot_restore(void) {
    // The allocator takes what the system gives it anew for zeroed.
    if ((void *)syscall(SYS_brk, 0) != snapshot.brk && (void *)syscall(SYS_brk, snapshot.brk) != snapshot.brk)
        return errno = ENOMEM, -1;
    for (size_t number = 0; number < snapshot.num_regions; number++) {
        const struct region *region = snapshot.regions + number;
        if (!region->is_mapped) copy_back(region->start, snapshot.copies + region->offset, region->size);
        else if (map(region)) return -1;
    }
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
