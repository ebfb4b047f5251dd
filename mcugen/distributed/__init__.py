# SPDX-License-Identifier: Apache-2.0
"""Work that is shared out: among processes of this computer, or those of a Dask cluster."""
