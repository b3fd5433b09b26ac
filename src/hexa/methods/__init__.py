"""Self-supervised methods, one file each; a new method is found because it is a file of this
package.

Methods that only the paper compares with are in `hexa_paper.methods`.
"""

from hexa.methods.byol import BYOL as BYOL, BYOLConfig as BYOLConfig
from hexa.methods.deepcluster import (
    DeepCluster as DeepCluster,
    DeepClusterConfig as DeepClusterConfig,
)
from hexa.methods.dino import DINO as DINO, DINOConfig as DINOConfig
from hexa.methods.moco import MoCo as MoCo, MoCoConfig as MoCoConfig
from hexa.methods.pcl import PCL as PCL, PCLConfig as PCLConfig
from hexa.methods.rotation import Rotation as Rotation, RotationConfig as RotationConfig
from hexa.methods.simclr import SimCLR as SimCLR, SimCLRConfig as SimCLRConfig
from hexa.methods.simsiam import SimSiam as SimSiam, SimSiamConfig as SimSiamConfig
from hexa.methods.swav import SwAV as SwAV, SwAVConfig as SwAVConfig
from hexa.methods.teacher import Teacher as Teacher, TeacherConfig as TeacherConfig
