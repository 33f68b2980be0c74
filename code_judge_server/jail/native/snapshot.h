// The memory of a process as it was at one moment, kept in a file, from which forks go on: see snapshot.c.

#pragma once

#include <sys/types.h>

// Takes the snapshot: returns 0 then, and 1 again in every fork that resumes it; -1 with errno if it cannot be taken. Only for a
// process of a single thread; what it has in files, descriptors and the like is no part of it.
int snapshot_take(void);

// Has forks of this process come without the memory that they would map from the snapshot, or with it again; -1 with errno.
int snapshot_keep_from_forks(int kept);

// Forks, with a message to the fork, and returns as `fork` does; -1 too for a message of more than 4 MiB.
pid_t snapshot_fork(const void *message, size_t size);

// In the fork, first: makes all memory but the stack what it was; -1 with errno.
int snapshot_restore(void);

// In the fork: the message.
const void *snapshot_message(void);

// In the fork, last: goes on where the snapshot was taken.
_Noreturn void snapshot_resume(void);
