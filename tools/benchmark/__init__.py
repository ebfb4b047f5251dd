# SPDX-License-Identifier: Apache-2.0
"""What `make bench` is made of: models, measurements of mcugen and its peers, and tables of them."""
