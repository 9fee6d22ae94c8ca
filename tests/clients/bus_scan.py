"""DPDK's scan of the PCI bus, by the shared libraries of Debian: EAL finds the modelled function in
sysfs, gives it to the driver mlx5_pci, and that one finds its RDMA device by the PCI address.
Prints what they log.

    verbless-model run --link ethernet -- python3 tests/clients/bus_scan.py

Fails unless EAL starts. The driver gives up where it looks for the port's network interface, which
a modelled port does not have.
"""

import ctypes
import glob
import os
import sys

libraries = sorted(glob.glob("/usr/lib/*/librte_eal.so.*"))
if not libraries:
    sys.exit("there is no librte_eal: apt-get install librte-net-mlx5-23")
options = ["bus_scan", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "64", "-l", "0"]
options += ["--log-level=pmd.common.mlx5:debug", "--log-level=pmd.net.mlx5:debug"]
# Of the machine's own devices, none is probed.
devices = os.listdir("/sys/bus/pci/devices")
with_vendor = [(open(f"/sys/bus/pci/devices/{one}/vendor").read().strip(), one) for one in devices]
ours = [one for vendor, one in with_vendor if vendor == "0x15b3"]
if not ours:
    sys.exit("no function of vendor 0x15b3 is in /sys/bus/pci/devices: start it under `verbless-model run`")
options += [f"--allow={one}" for one in ours]
arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
eal = ctypes.CDLL(libraries[0], mode=ctypes.RTLD_GLOBAL)
if eal.rte_eal_init(len(options), arguments) < 0:
    sys.exit("rte_eal_init failed")
print("EAL is up")
sys.stdout.flush()
os._exit(0)
