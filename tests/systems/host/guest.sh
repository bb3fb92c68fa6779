#!/bin/sh
# What a guest with a distribution's system is for: the package's whole cycle. The programs and the packages lie beside
# this.
here=$(dirname "$0")
export HOLDFAST_PACKAGES="$here"
exec "$here"/host-* --exact cycle::install_upgrade_and_purge_in_one_boot --nocapture
