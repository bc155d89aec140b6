#pragma once
#include <stddef.h>
#include <stdint.h>

/*
 * Numbers are embedded as string literals, which compilers read a hundred times faster than lists of numbers. C99 asks
 * for literals of at most 4095 characters: so they come in pieces, each closed by the zero that ends a literal. Data
 * that is read at once, a chunk, lies in one piece.
 */
struct literal {
    const unsigned char *bytes;
    size_t chunk_bytes;
    size_t chunks_in_piece;
};

struct chunks {
    const unsigned char *next;
    size_t bytes, in_piece, left_in_piece;
};

static struct chunks chunks_of(const struct literal *literal)
{
    struct chunks chunks;
    chunks.next = literal->bytes;
    chunks.bytes = literal->chunk_bytes;
    chunks.in_piece = literal->chunks_in_piece;
    chunks.left_in_piece = literal->chunks_in_piece;
    return chunks;
}

static const unsigned char *next_chunk(struct chunks *chunks)
{
    const unsigned char *chunk = chunks->next;
    chunks->next += chunks->bytes;
    if (--chunks->left_in_piece == 0) {
        chunks->left_in_piece = chunks->in_piece;
        chunks->next += 1; /* the zero */
    }
    return chunk;
}
