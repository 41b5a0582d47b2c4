/*
 * memory.cc - the memory of emulated devices: an arena each, closed to the host.
 */
#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

namespace
{

constexpr size_t ARENA = (size_t)1 << 30, ALIGNMENT = 512; /* as torch's allocator */
constexpr size_t MOST_POISON = (size_t)1 << 20;            /* what follows stays */

struct arena {
    char *begin = nullptr;
    size_t used = 0;
    std::multimap<size_t, void *> unused; /* blocks that were given back, by size */
};

/* Never destroyed: tensors may outlive what the program's end takes down. */
arena *const arenas = new arena[EMULATED_DEVICES];
std::map<void *, std::pair<int, size_t>> &blocks =
    *new std::map<void *, std::pair<int, size_t>>;
std::recursive_mutex &computing = *new std::recursive_mutex;
std::mutex &allocating = *new std::mutex;
int depth;
int64_t n_ever, bytes_now, bytes_most, n_left = INT64_MAX;

void protect(int access)
{
    for (int i = 0; i < EMULATED_DEVICES; i++)
        if (arenas[i].begin && mprotect(arenas[i].begin, ARENA, access))
            abort();
}

/* Makes bytes the size of the block, where it was another's that was a little larger. */
void *block_of(arena &a, size_t &bytes)
{
    const auto found = a.unused.lower_bound(bytes);
    void *memory;

    if (found != a.unused.end() && found->first <= bytes + bytes / 8) {
        memory = found->second;
        bytes = found->first;
        a.unused.erase(found);
        return memory;
    }
    if (a.used + bytes > ARENA)
        return nullptr;
    memory = a.begin + a.used;
    a.used += bytes;
    return memory;
}

} // namespace

void emulated_open(void)
{
    computing.lock();
    if (depth++ == 0)
        protect(PROT_READ | PROT_WRITE);
}

void emulated_close(void)
{
    if (--depth == 0)
        protect(PROT_NONE);
    computing.unlock();
}

void *emulated_alloc(int device, size_t wanted)
{
    size_t bytes = (wanted + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory = nullptr;

    if (bytes == 0)
        return nullptr;
    emulated_open();
    {
        std::lock_guard<std::mutex> guard(allocating);
        arena &a = arenas[device];

        if (!a.begin) {
            void *begin = mmap(nullptr, ARENA, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

            if (begin == MAP_FAILED)
                abort();
            a.begin = static_cast<char *>(begin);
        }
        memory = n_left > 0 ? block_of(a, bytes) : nullptr;
        if (memory) {
            n_left--;
            blocks[memory] = {device, bytes};
            n_ever++;
            bytes_now += (int64_t)bytes;
            bytes_most = std::max(bytes_most, bytes_now);
            memset(memory, 0xff, std::min(bytes, MOST_POISON));
        }
    }
    emulated_close();
    return memory;
}

void emulated_free(void *memory)
{
    std::lock_guard<std::mutex> guard(allocating);
    const auto found = blocks.find(memory);

    if (!memory)
        return;
    if (found == blocks.end()) {
        fprintf(stderr, "device memory given back that was not given\n");
        abort();
    }
    arenas[found->second.first].unused.emplace(found->second.second, memory);
    bytes_now -= (int64_t)found->second.second;
    blocks.erase(found);
}

int64_t emulated_blocks(void)
{
    std::lock_guard<std::mutex> guard(allocating);

    return (int64_t)blocks.size();
}

/* No more than n further blocks are given out. */
void emulated_allow_blocks(int64_t n)
{
    std::lock_guard<std::mutex> guard(allocating);

    n_left = n;
}

int64_t emulated_blocks_ever(void)
{
    std::lock_guard<std::mutex> guard(allocating);

    return n_ever;
}

int64_t emulated_bytes(void)
{
    std::lock_guard<std::mutex> guard(allocating);

    return bytes_now;
}

int64_t emulated_most_bytes(void)
{
    std::lock_guard<std::mutex> guard(allocating);
    const int64_t most = bytes_most;

    bytes_most = bytes_now;
    return most;
}
