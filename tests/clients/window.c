/* Two processes of MPI put into, get from and add to each other's windows, and look at every byte
   of them: those of the message, and those in front of it and behind it. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, MARGIN = 4096, WHOLE = MAX_BYTES + 2 * MARGIN };
enum { UNTOUCHED = 0xa5, ADDS = 200 };

static unsigned char expected(int from, int size, int at) {
    return (unsigned char)(from * 101 + size * 7 + at * 13 + (at >> 8));
}

/* How many bytes of a window differ from a message of `size` bytes at `start`, untouched around. */
static int differing(const unsigned char *window, int start, int from, int size) {
    int wrong = 0;
    for (int at = 0; at < WHOLE; at++) {
        int inside = at >= start && at < start + size;
        wrong += window[at] != (inside ? expected(from, size, at - start) : UNTOUCHED);
    }
    return wrong;
}

int main(int argc, char **argv) {
    static unsigned char own[MAX_BYTES], got[WHOLE];
    int me, ranks, wrong = 0, all = 0;
    unsigned char *memory;
    long *counter;
    MPI_Win window, counters;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int peer = 1 - me;
    MPI_Win_allocate(WHOLE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter,
                     &counters);
    for (int size = 1; size <= MAX_BYTES; size *= 4) {
        /* An odd start too: pages, lines and operands of atomics do not hide a shift. */
        int start = MARGIN + size % 3;
        for (int at = 0; at < size; at++)
            own[at] = expected(me, size, at);
        memset(memory, UNTOUCHED, WHOLE);
        memset(got, UNTOUCHED, WHOLE);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, window);
        MPI_Put(own, size, MPI_BYTE, peer, start, size, MPI_BYTE, window);
        MPI_Win_flush(peer, window);
        MPI_Get(got + start, size, MPI_BYTE, peer, start, size, MPI_BYTE, window);
        MPI_Win_unlock(peer, window);
        MPI_Barrier(MPI_COMM_WORLD);
        wrong += differing(memory, start, peer, size) + differing(got, start, me, size);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 1, before; i <= ADDS; i++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
        MPI_Fetch_and_op(&i, &before, MPI_LONG, 0, 0, MPI_SUM, counters);
        MPI_Win_unlock(0, counters);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        wrong += *counter != ADDS * (ADDS + 1);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0)
        printf("%d wrong\n", all);
    MPI_Win_free(&counters);
    MPI_Win_free(&window);
    MPI_Finalize();
    return all != 0;
}
