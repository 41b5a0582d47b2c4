/*
 * registration.c - overrides into the dispatcher, and out.
 *
 * Each operator has a library object of its own for each device, so that it can come
 * and go alone.
 */
#include "bind/torch/overrides/override.h"

#include "bind/abi/dispatch_slot.h"

enum {
    MAX_OVERRIDES = 128,
};

static const char *const keys[PTAC_N_DEVICES] = {"CPU", "CUDA"};

static const ptac_override *announced[MAX_OVERRIDES];
static at_library libraries[MAX_OVERRIDES][PTAC_N_DEVICES];
static ptac_op_set ops_wanted[MAX_OVERRIDES][PTAC_N_DEVICES];
static bool is_typed[MAX_OVERRIDES][PTAC_N_DEVICES];
static bool is_in[MAX_OVERRIDES][PTAC_N_DEVICES];
static size_t place_of[PTAC_N_DEVICES]; /* where entries keep kernels; 0: not known */
static int n_announced;

void ptac_override_announce(ptac_override *override)
{
    if (override->n_arguments) /* its other side has been announced */
        return;
    if (n_announced == MAX_OVERRIDES || !ptac_schema_read(override))
        __builtin_trap();
    announced[n_announced++] = override;
}

ptac_op_set ptac_override_ops(const ptac_override *override)
{
    ptac_op_set ops = {{0}};

    ptac_op_set_add(&ops, override->op);
    for (int i = 0; i < override->n_others; i++)
        ptac_op_set_add(&ops, override->others[i]);
    return ops;
}

const ptac_override *ptac_override_at(int i)
{
    return i < n_announced ? announced[i] : NULL;
}

static bool is_possible(const ptac_override *override, int device)
{
    const ptac_override_side *side = &override->on[device];

    if (override->is_only_typed && (device != PTAC_ON_CPU || !ptac_scalars_are_known()))
        return false;
    return side->boxed && (override->out || ptac_torch_has(side->symbol)) &&
           (!override->needs || ptac_torch_has(override->needs));
}

static void remove_one(int i, int device, const ptac_op_set *ops)
{
    ptac_op_set_remove(&ops_wanted[i][device], ops);
    if (!ptac_op_set_is_empty(&ops_wanted[i][device]))
        return;
    if (is_in[i][device] && announced[i]->is_only_typed)
        ptac_scalars_remove(announced[i]);
    if (libraries[i][device])
        T.aoti_torch_delete_library_object(libraries[i][device]);
    libraries[i][device] = NULL;
    is_in[i][device] = false;
}

static const char *register_one(int i, int device)
{
    const ptac_override *override = announced[i];
    const ptac_override_side *side = &override->on[device];
    at_library library = NULL;
    at_entry entry = {NULL};

    if (T.aoti_torch_library_init_impl("aten", keys[device], "pai_torchacc", 0,
                                       &library))
        return "could not open a dispatcher library";
    if (side->typed && override->can_be_typed)
        at_entry_remember(override->name, &entry);
    if (T.torch_library_impl(library, override->name, side->boxed,
                             PTAC_TORCH_ABI_VERSION)) {
        at_entry_forget(&entry);
        T.aoti_torch_delete_library_object(library);
        return "could not register a kernel";
    }
    is_typed[i][device] = at_entry_set_typed(&entry, side->boxed, side->typed);
    if (is_typed[i][device])
        place_of[device] = entry.place;
    libraries[i][device] = library;
    return NULL;
}

static const char *install_one(int i, int device)
{
    const char *trouble;

    if (announced[i]->is_only_typed) {
        is_in[i][device] = !ptac_scalars_install(announced[i], place_of[device]);
        is_typed[i][device] = is_in[i][device];
        return NULL; /* where it cannot be, torch's own stays */
    }
    trouble = register_one(i, device);
    is_in[i][device] = !trouble;
    return trouble;
}

size_t ptac_override_place(ptac_device device)
{
    /* Any operator's entry tells: one that is registered for a moment. */
    for (int i = 0; i < n_announced && !place_of[device]; i++) {
        if (announced[i]->is_only_typed || is_in[i][device] ||
            !is_possible(announced[i], device))
            continue;
        if (!register_one(i, device))
            T.aoti_torch_delete_library_object(libraries[i][device]);
        libraries[i][device] = NULL;
    }
    return place_of[device];
}

/* The operators of an override that are among these places. */
static ptac_op_set among(const ptac_places *places, int i, int device)
{
    ptac_op_set ops = ptac_override_ops(announced[i]);

    ptac_op_set_intersect(&ops, &places->on[device]);
    return ops;
}

const char *ptac_override_install(ptac_places wanted)
{
    const ptac_places before = ptac_override_installed(false);

    for (int i = 0; i < n_announced; i++) {
        for (int device = 0; device < PTAC_N_DEVICES; device++) {
            const ptac_op_set ops = among(&wanted, i, device);
            ptac_places added = wanted;
            const char *trouble = NULL;

            if (ptac_op_set_is_empty(&ops) || !is_possible(announced[i], device))
                continue;
            if (!is_in[i][device])
                trouble = install_one(i, device);
            if (!trouble) {
                ptac_op_set_unite(&ops_wanted[i][device], &ops);
                continue;
            }
            for (int each = 0; each < PTAC_N_DEVICES; each++)
                ptac_op_set_remove(&added.on[each], &before.on[each]);
            ptac_override_remove(added);
            return trouble;
        }
    }
    return NULL;
}

ptac_places ptac_override_installed(bool only_typed)
{
    ptac_places found = {0};

    for (int i = 0; i < n_announced; i++)
        for (int device = 0; device < PTAC_N_DEVICES; device++)
            if (is_in[i][device] && (is_typed[i][device] || !only_typed))
                ptac_op_set_unite(&found.on[device], &ops_wanted[i][device]);
    return found;
}

void ptac_override_remove(ptac_places unwanted)
{
    /* Torch restores the kernel that each registration had covered. */
    for (int i = n_announced - 1; i >= 0; i--)
        for (int device = 0; device < PTAC_N_DEVICES; device++) {
            const ptac_op_set ops = among(&unwanted, i, device);

            remove_one(i, device, &ops);
        }
}
