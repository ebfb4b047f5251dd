# SPDX-License-Identifier: Apache-2.0
"""On-device training: conversion of an inference model to a model with a loss, gradients and updates."""
