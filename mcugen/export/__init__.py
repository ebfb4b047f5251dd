# SPDX-License-Identifier: Apache-2.0
"""Packages: the generated folder in the form that an IDE or a build system takes as it is.

A format is declared once (`declaration.Format`): its files, its steps for people, how it is checked. `formats.FORMATS`
lists them; `package.Package` is what they are told of a model; `install` writes a package into a project.
"""
