/*
 * override.c - one library object an operator, so that each can come and go alone.
 */
#include "bind/torch/overrides/override.h"

enum {
    MAX_OVERRIDES = 32,
};

static const ptac_override *announced[MAX_OVERRIDES];
static at_library libraries[MAX_OVERRIDES];
static int n_announced;

void ptac_override_announce(const ptac_override *override)
{
    if (n_announced == MAX_OVERRIDES)
        __builtin_trap();
    announced[n_announced++] = override;
}

const ptac_override *const *ptac_overrides(int *n)
{
    *n = n_announced;
    return announced;
}

static bool is_possible(const ptac_override *override)
{
    return !override->is_possible || override->is_possible();
}

static void remove_one(int i)
{
    if (libraries[i])
        T.aoti_torch_delete_library_object(libraries[i]);
    libraries[i] = NULL;
}

static const char *install_one(int i)
{
    at_library library = NULL;

    if (T.aoti_torch_library_init_impl("aten", "CPU", "pai_torchacc", 0, &library))
        return "could not open a dispatcher library";
    if (T.torch_library_impl(library, announced[i]->name, announced[i]->boxed,
                             PTAC_TORCH_ABI_VERSION)) {
        T.aoti_torch_delete_library_object(library);
        return "could not register a kernel";
    }
    libraries[i] = library;
    return NULL;
}

const char *ptac_override_install(uint64_t ops)
{
    const uint64_t before = ptac_override_installed();

    for (int i = 0; i < n_announced; i++) {
        const uint64_t bit = UINT64_C(1) << announced[i]->op;
        const char *trouble = NULL;

        if (!(ops & bit) || libraries[i] || !is_possible(announced[i]))
            continue;
        trouble = install_one(i);
        if (trouble) {
            for (int j = 0; j < i; j++)
                if (!(before & UINT64_C(1) << announced[j]->op))
                    remove_one(j);
            return trouble;
        }
    }
    return NULL;
}

uint64_t ptac_override_installed(void)
{
    uint64_t ops = 0;

    for (int i = 0; i < n_announced; i++)
        if (libraries[i])
            ops |= UINT64_C(1) << announced[i]->op;
    return ops;
}

void ptac_override_remove(uint64_t ops)
{
    /* Torch restores the kernel that each registration had covered. */
    for (int i = n_announced - 1; i >= 0; i--)
        if (ops & UINT64_C(1) << announced[i]->op)
            remove_one(i);
}
