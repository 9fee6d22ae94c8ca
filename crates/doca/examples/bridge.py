"""Opens a device with rdma-core's pyverbs and becomes the program that its arguments name, with the
device's context open and its protection domain as an option."""

import os
import sys

from pyverbs.device import Context, get_device_list
from pyverbs.pd import PD
from pyverbs.providers.mlx5.mlx5dv_objects import Mlx5DvObj
import pyverbs.providers.mlx5.mlx5_enums as dve

context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
pdn = Mlx5DvObj(dve.MLX5DV_OBJ_PD, pd=pd).dvpd.pdn
fd = os.dup(context.cmd_fd)
os.set_inheritable(fd, True)
program = sys.argv[1]
os.execv(program, [program, "--fd", str(fd), "--pd", f"{pd.handle}:{pdn}"])
