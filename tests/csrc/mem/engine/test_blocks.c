/*
 * test_blocks.c - the table of blocks where it is fullest, sizes and their classes,
 * policies by name.
 */
#include "mem/engine/block.h"
#include "mem/engine/policy.h"
#include "mem/engine/size_classes.h"

#include "random.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_BLOCKS = 5000,
};

/* Few addresses, so that searches run into one another and around the end. */
UNIT(the_table_holds_what_was_put_in)
{
    static ptac_block blocks[N_BLOCKS];
    ptac_block_table table = {0};
    rng r = {3};

    EXPECT(!ptac_table_find(&table, 64) && !ptac_table_take(&table, 64));
    for (int i = 0; i < 300000; i++) {
        const uintptr_t address = 64 * (uintptr_t)rng_between(&r, 1, N_BLOCKS - 1);
        ptac_block *b = &blocks[address / 64];

        EXPECT(ptac_table_find(&table, address) == (b->address ? b : NULL));
        if (!b->address) {
            EXPECT(ptac_table_prepare(&table));
            b->address = address;
            ptac_table_put(&table, b);
        } else {
            EXPECT(ptac_table_take(&table, address) == b);
            b->address = 0;
        }
    }
    EXPECT(2 * table.n_blocks <= table.n_slots);
    for (size_t i = 1; i < N_BLOCKS; i++)
        EXPECT(ptac_table_find(&table, 64 * i) ==
               (blocks[i].address ? &blocks[i] : NULL));
    ptac_table_close(&table);
}

UNIT(classes_of_sizes_do_not_decrease)
{
    int last = ptac_size_class(32);

    for (size_t bytes = 33; bytes < 100000; bytes++) {
        const int class = ptac_size_class(bytes);

        EXPECT(class == last || class == last + 1);
        last = class;
    }
    for (int power = 6; power < 64; power++) {
        const size_t bytes = (size_t)1 << power;

        EXPECT(ptac_size_class(bytes) == 32 * power);
        EXPECT(ptac_size_class(bytes - 1) == 32 * power - 1);
        EXPECT(ptac_size_class(bytes + bytes / 32) == 32 * power + 1);
    }
    EXPECT(ptac_size_class(SIZE_MAX) == PTAC_N_SIZE_CLASSES - 1);
}

UNIT(the_next_class_is_found)
{
    static ptac_size_classes lists;
    ptac_block block = {.bytes = SIZE_MAX}, other = {.bytes = 100};

    EXPECT(ptac_size_next(&lists, 0) == -1);
    EXPECT(ptac_size_next(&lists, PTAC_N_SIZE_CLASSES) == -1);
    ptac_size_classes_add(&lists, &block);
    for (int class = 0; class < PTAC_N_SIZE_CLASSES; class ++)
        EXPECT(ptac_size_next(&lists, class) == PTAC_N_SIZE_CLASSES - 1);
    ptac_size_classes_add(&lists, &other);
    EXPECT(ptac_size_next(&lists, 0) == ptac_size_class(100));
    EXPECT(ptac_size_next(&lists, ptac_size_class(100) + 1) == PTAC_N_SIZE_CLASSES - 1);
    ptac_size_classes_drop(&lists, &block);
    ptac_size_classes_drop(&lists, &other);
    EXPECT(ptac_size_next(&lists, 0) == -1 && lists.powers == 0);
}

/* Many blocks that are nearly large enough must not hide those that are. */
UNIT(near_misses_hide_nothing)
{
    static ptac_block blocks[201];

    for (int p = 0; ptac_policy_at(p); p++) {
        const ptac_policy *policy = ptac_policy_at(p);
        void *index = calloc(1, policy->index_bytes);
        ptac_block *found;

        for (int i = 0; i < 200; i++) {
            blocks[i] = (ptac_block){.address = (uintptr_t)(i + 1) << 20,
                                     .bytes = 100000,
                                     .flags = PTAC_BLOCK_FREE | PTAC_BLOCK_LISTED};
            policy->add(index, &blocks[i]);
        }
        blocks[200] = (ptac_block){.address = 64, .bytes = 500000};
        policy->add(index, &blocks[200]);
        found = policy->find(index, 100064);
        EXPECT(found == &blocks[200]);
        EXPECT(!policy->find(index, 500064));
        for (int i = 0; i <= 200; i++)
            policy->drop(index, &blocks[i]);
        EXPECT(!policy->find(index, 64));
        free(index);
    }
}

UNIT(policies_are_found_by_name_in_order)
{
    int n = 0;

    for (; ptac_policy_at(n); n++) {
        EXPECT(ptac_policy_find(ptac_policy_at(n)->name) == ptac_policy_at(n));
        EXPECT(n == 0 ||
               strcmp(ptac_policy_at(n - 1)->name, ptac_policy_at(n)->name) < 0);
    }
    EXPECT(n >= 3 && !ptac_policy_at(-1));
    EXPECT(!ptac_policy_find("") && !ptac_policy_find("no_fit"));
    EXPECT(ptac_policy_find("best_fit") && ptac_policy_find("exact_fit"));
    EXPECT(ptac_policy_find("first_fit"));
}
