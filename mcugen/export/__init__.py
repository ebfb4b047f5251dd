# SPDX-License-Identifier: Apache-2.0
"""Packages: the generated folder in the form that an IDE or a build system can use directly.

A format is declared once (`declaration.Format`): its files, its steps for users, and how it is tested.
`formats.FORMATS` lists the formats. `package.Package` describes a model for them, and `install` writes a package into a
project.
"""
