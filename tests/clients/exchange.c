/* Two processes send each other messages of many sizes, and look at every byte that arrives. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 1 << 20, EXTRA = 3 };

static unsigned char expected(int from, int size, int at) {
    return (unsigned char)(from * 101 + size * 7 + at * 13 + (at >> 8));
}

int main(int argc, char **argv) {
    int rank, ranks, wrong = 0, all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *sent = malloc(MAX_BYTES + EXTRA), *got = malloc(MAX_BYTES + EXTRA);
    int peer = 1 - rank;
    if (ranks != 2 || !sent || !got)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int power = 1; power <= MAX_BYTES; power *= 4) {
        int size = power + EXTRA;
        for (int at = 0; at < size; at++) {
            sent[at] = expected(rank, size, at);
            got[at] = 0;
        }
        MPI_Sendrecv(sent, size, MPI_BYTE, peer, power, got, size, MPI_BYTE, peer, power,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int at = 0; at < size; at++)
            wrong += got[at] != expected(peer, size, at);
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d bytes wrong\n", all);
    free(sent);
    free(got);
    MPI_Finalize();
    return all != 0;
}
