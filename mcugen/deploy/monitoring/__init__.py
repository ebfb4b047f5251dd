# SPDX-License-Identifier: Apache-2.0
"""`mcugen monitor`: snapshots of statistics in the field, compared with the samples of compilation."""
