/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in, for tests, for those parts of MicroPython's C interface that an exported module uses, by its
 * documentation. Names are strings, small integers have an odd address, and exceptions are jumps. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *mp_obj_t;
typedef const void *mp_const_obj_t;
typedef mp_const_obj_t mp_rom_obj_t;
typedef intptr_t mp_int_t;
typedef unsigned char byte;
typedef const char *mp_rom_error_text_t;

struct mp_obj_type;
typedef struct {
    const struct mp_obj_type *type;
} mp_obj_base_t;
typedef struct {
    mp_rom_obj_t key, value;
} mp_rom_map_elem_t;
typedef struct {
    const mp_rom_map_elem_t *table;
    size_t count;
} mp_obj_dict_t;
typedef mp_obj_t (*mp_make_new_t)(const struct mp_obj_type *type, size_t n_args, size_t n_kw, const mp_obj_t *args);
typedef struct mp_obj_type {
    const char *name;
    mp_make_new_t make_new;
    const mp_obj_dict_t *locals_dict;
} mp_obj_type_t;
typedef struct {
    mp_obj_base_t base;
    mp_obj_dict_t *globals;
} mp_obj_module_t;
typedef struct {
    size_t least, most;
    mp_obj_t (*none)(void);
    mp_obj_t (*one)(mp_obj_t self);
    mp_obj_t (*some)(size_t n_args, const mp_obj_t *args);
} function_object;
typedef struct {
    mp_obj_base_t base;
    size_t len;
    mp_rom_obj_t items[];
} mp_rom_obj_tuple_t;
typedef struct {
    void *buf;
    size_t len;
    int typecode;
} mp_buffer_info_t;
typedef struct {
    mp_obj_base_t base;
    mp_buffer_info_t info;
} buffer_object; /* an array, bytes, or a memoryview */

#define BYTEARRAY_TYPECODE 1
#define MP_OBJ_ARRAY_TYPECODE_FLAG_RW 0x80
#define MP_BUFFER_READ 1
#define MP_TYPE_FLAG_NONE 0
#define MP_ERROR_TEXT(text) (text)
#define MP_OBJ_TO_PTR(object) ((void *)(object))
#define MP_OBJ_FROM_PTR(pointer) ((mp_obj_t)(pointer))
#define MP_ROM_PTR(pointer) ((mp_rom_obj_t)(pointer))
#define MP_ROM_QSTR(name) ((mp_rom_obj_t)(name))
#define MP_ROM_INT(value) ((mp_rom_obj_t)(((intptr_t)(value) * 2) + 1))
#define MP_DEFINE_CONST_FUN_OBJ_0(object, function) const function_object object = {0, 0, function, NULL, NULL}
#define MP_DEFINE_CONST_FUN_OBJ_1(object, function) const function_object object = {1, 1, NULL, function, NULL}
#define MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(object, least, most, function) \
    const function_object object = {least, most, NULL, NULL, function}
#define MP_DEFINE_CONST_DICT(dict, table) const mp_obj_dict_t dict = {table, sizeof table / sizeof table[0]}
#define MP_DEFINE_CONST_OBJ_TYPE(type, name, flags, key, value, other_key, other_value) \
    const mp_obj_type_t type = {name, .key = value, .other_key = other_value}
#define MP_REGISTER_MODULE(name, object) const mp_obj_module_t *const registered = &(object)
#define mp_const_none ((mp_obj_t)&none)
#define mp_obj_malloc(structure, object_type) ((structure *)new_object(sizeof(structure), object_type))

static const mp_obj_type_t mp_type_module = {"module", NULL, NULL}, mp_type_tuple = {"tuple", NULL, NULL};
static const mp_obj_type_t mp_type_buffer = {"buffer", NULL, NULL}, mp_type_TypeError = {"TypeError", NULL, NULL};
static const mp_obj_type_t mp_type_ValueError = {"ValueError", NULL, NULL};
static const mp_obj_type_t mp_type_IndexError = {"IndexError", NULL, NULL};
static const mp_obj_type_t mp_type_RuntimeError = {"RuntimeError", NULL, NULL};
static const mp_obj_base_t none = {NULL};
static jmp_buf handler;
static char raised[200];

#define mp_raise_msg_varg(type, ...) \
    ((void)sprintf(raised, "%s: ", (type)->name), (void)sprintf(&raised[strlen(raised)], __VA_ARGS__), longjmp(handler, 1))
#define mp_raise_msg(type, text) mp_raise_msg_varg(type, "%s", text)
#define mp_raise_ValueError(text) mp_raise_msg(&mp_type_ValueError, text)
#define mp_raise_TypeError(text) mp_raise_msg(&mp_type_TypeError, text)

static inline void *m_malloc(size_t nbytes)
{
    return calloc(1, nbytes);
}

static inline void *new_object(size_t nbytes, const mp_obj_type_t *type)
{
    mp_obj_base_t *const object = (mp_obj_base_t *)calloc(1, nbytes);
    object->type = type;
    return object;
}

static inline void mp_get_buffer_raise(mp_obj_t object, mp_buffer_info_t *info, int flags)
{
    (void)flags;
    if (((uintptr_t)object & 1u) != 0u || ((const mp_obj_base_t *)object)->type != &mp_type_buffer) {
        mp_raise_TypeError("object with buffer protocol required");
    }
    *info = ((const buffer_object *)object)->info;
}

static inline mp_int_t mp_obj_get_int(mp_obj_t object)
{
    if (((uintptr_t)object & 1u) == 0u) {
        mp_raise_TypeError("can't convert to int");
    }
    return (mp_int_t)object >> 1;
}

static inline mp_obj_t mp_obj_new_memoryview(byte typecode, size_t count, void *items)
{
    buffer_object *const view = (buffer_object *)new_object(sizeof *view, &mp_type_buffer);
    view->info = (mp_buffer_info_t){items, count, typecode};
    return view;
}

static inline mp_obj_t mp_obj_new_tuple(size_t count, const mp_obj_t *items)
{
    mp_rom_obj_tuple_t *const tuple = (mp_rom_obj_tuple_t *)new_object(sizeof *tuple + (count * sizeof *items), &mp_type_tuple);
    tuple->len = count;
    (void)memcpy((void *)tuple->items, items, count * sizeof *items);
    return tuple;
}

static inline void mp_arg_check_num(size_t n_args, size_t n_kw, size_t least, size_t most, bool takes_kw)
{
    (void)takes_kw;
    if (n_args < least || n_args > most || n_kw > 0u) {
        mp_raise_TypeError("wrong number of arguments");
    }
}

#endif
