# SPDX-License-Identifier: Apache-2.0
"""Distribution of work over processes of this computer or workers of a Dask cluster."""
