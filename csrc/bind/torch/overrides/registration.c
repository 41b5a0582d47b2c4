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
static int n_announced;
static const ptac_override *typed_alone[MAX_OVERRIDES]; /* only C++ calls come */
static int n_typed_alone;

/* Nothing of it is registered. */
static void announce_typed(ptac_override *override)
{
    const ptac_override_side *side = &override->on[PTAC_ON_CPU];

    override->direct = (ptac_direct){
        .name = override->name,
        .overload = "",
        .op = override->op,
        .symbol = side->symbol,
        .needs = override->needs,
        .typed = side->typed,
    };
    ptac_direct_announce(&override->direct);
}

void ptac_override_announce(ptac_override *override)
{
    if (override->n_arguments) /* its other side has been announced */
        return;
    if (n_announced == MAX_OVERRIDES || !ptac_schema_read(override))
        __builtin_trap();
    if (override->is_only_typed) {
        if (n_typed_alone == MAX_OVERRIDES)
            __builtin_trap();
        typed_alone[n_typed_alone++] = override;
        announce_typed(override);
        return;
    }
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

static const ptac_override *named(const ptac_override *const *overrides, int n,
                                  const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(overrides[i]->name, name) == 0)
            return overrides[i];
    return NULL;
}

const ptac_override *ptac_override_named(const char *name)
{
    const ptac_override *found = named(announced, n_announced, name);

    return found ? found : named(typed_alone, n_typed_alone, name);
}

static bool is_possible(const ptac_override *override, int device)
{
    const ptac_override_side *side = &override->on[device];

    return side->boxed && (override->out || ptac_torch_has(side->symbol)) &&
           (!override->needs || ptac_torch_has(override->needs));
}

static void remove_one(int i, int device, const ptac_op_set *ops)
{
    ptac_op_set_remove(&ops_wanted[i][device], ops);
    if (!ptac_op_set_is_empty(&ops_wanted[i][device]))
        return;
    if (libraries[i][device])
        T.aoti_torch_delete_library_object(libraries[i][device]);
    libraries[i][device] = NULL;
}

static const char *install_one(int i, int device)
{
    const ptac_override *override = announced[i];
    const ptac_override_side *side = &override->on[device];
    at_library library = NULL;
    at_entry entry = {.is_on_cpu = device == PTAC_ON_CPU};

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
    libraries[i][device] = library;
    return NULL;
}

/* The operators of an override that are among these places. */
static ptac_op_set among(const ptac_places *places, int i, int device)
{
    ptac_op_set ops = ptac_override_ops(announced[i]);

    ptac_op_set_intersect(&ops, &places->on[device]);
    return ops;
}

/*
 * Where an entry holds the CPU's kernel shows when an override is registered. Any will
 * do, and sends calls to stock; it leaves with the next ones that are taken out.
 */
static void prove_entries(void)
{
    for (int i = 0; i < n_announced; i++) {
        if (libraries[i][PTAC_ON_CPU] || !is_possible(announced[i], PTAC_ON_CPU) ||
            !announced[i]->on[PTAC_ON_CPU].typed || !announced[i]->can_be_typed)
            continue;
        install_one(i, PTAC_ON_CPU);
        return;
    }
}

static void install_direct(const ptac_op_set *wanted)
{
    for (const ptac_direct *d = ptac_direct_first(); d; d = d->next)
        if (ptac_op_set_has(wanted, d->op) && !at_entry_is_proved()) {
            prove_entries();
            break;
        }
    ptac_direct_install(wanted);
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
            if (!libraries[i][device])
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
    install_direct(&wanted.on[PTAC_ON_CPU]);
    return NULL;
}

ptac_places ptac_override_installed(bool only_typed)
{
    ptac_places found = {.on = {[PTAC_ON_CPU] = ptac_direct_installed()}};

    for (int i = 0; i < n_announced; i++)
        for (int device = 0; device < PTAC_N_DEVICES; device++)
            if (libraries[i][device] && (is_typed[i][device] || !only_typed))
                ptac_op_set_unite(&found.on[device], &ops_wanted[i][device]);
    return found;
}

void ptac_override_remove(ptac_places unwanted)
{
    ptac_direct_remove(&unwanted.on[PTAC_ON_CPU]);
    /* Torch restores the kernel that each registration had covered. */
    for (int i = n_announced - 1; i >= 0; i--)
        for (int device = 0; device < PTAC_N_DEVICES; device++) {
            const ptac_op_set ops = among(&unwanted, i, device);

            remove_one(i, device, &ops);
        }
}
