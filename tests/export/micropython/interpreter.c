/* SPDX-License-Identifier: Apache-2.0 */
/* Functions by which a test calls an exported module; it includes the module. */
#include MODULE

const char *last_error(void)
{
    return raised;
}

const void *lookup(const mp_obj_dict_t *dict, const char *name)
{
    size_t i;
    dict = dict == NULL ? registered->globals : dict;
    for (i = 0; i < dict->count; ++i) {
        if (strcmp((const char *)dict->table[i].key, name) == 0) {
            return dict->table[i].value;
        }
    }
    return NULL;
}

const void *method(const mp_obj_base_t *object, const char *name)
{
    return lookup(object->type->locals_dict, name);
}

mp_obj_t create(const mp_obj_type_t *type, size_t n_args, const mp_obj_t *args)
{
    return setjmp(handler) == 0 ? type->make_new(type, n_args, 0, args) : NULL;
}

mp_obj_t buffer(void *bytes, size_t nbytes, int typecode)
{
    buffer_object *const object = (buffer_object *)mp_obj_new_memoryview((byte)typecode, nbytes, bytes);
    return object;
}

/* Calls a function; returns NULL after an exception. */
mp_obj_t call(const function_object *function, size_t n_args, const mp_obj_t *args)
{
    if (setjmp(handler) != 0) {
        return NULL;
    }
    mp_arg_check_num(n_args, 0, function->least, function->most, false);
    return function->none != NULL ? function->none() : function->one != NULL ? function->one(args[0]) : function->some(n_args, args);
}

int is_tuple(const mp_obj_base_t *object)
{
    return object->type == &mp_type_tuple;
}
