"""Self-supervised methods, one file each; a new one is found by being a file of this package."""

from hexa.methods.byol import BYOL, BYOLConfig
from hexa.methods.cmc import CMC, CMCConfig
from hexa.methods.cpc import CPC, CPCConfig
from hexa.methods.deepcluster import DeepCluster, DeepClusterConfig
from hexa.methods.dino import DINO, DINOConfig
from hexa.methods.emp_ssl import EMPSSL, EMPSSLConfig
from hexa.methods.infomin import InfoMin, InfoMinConfig
from hexa.methods.instdisc import InstDisc, InstDiscConfig
from hexa.methods.jigsaw import Jigsaw, JigsawConfig
from hexa.methods.moco import MoCo, MoCoConfig
from hexa.methods.pcl import PCL, PCLConfig
from hexa.methods.pirl import PIRL, PIRLConfig
from hexa.methods.rotation import Rotation, RotationConfig
from hexa.methods.simclr import SimCLR, SimCLRConfig
from hexa.methods.simsiam import SimSiam, SimSiamConfig
from hexa.methods.swav import SwAV, SwAVConfig
from hexa.methods.teacher import Teacher, TeacherConfig

__all__ = [
    "BYOL",
    "CMC",
    "CPC",
    "DINO",
    "EMPSSL",
    "PCL",
    "PIRL",
    "BYOLConfig",
    "CMCConfig",
    "CPCConfig",
    "DINOConfig",
    "DeepCluster",
    "DeepClusterConfig",
    "EMPSSLConfig",
    "InfoMin",
    "InfoMinConfig",
    "InstDisc",
    "InstDiscConfig",
    "Jigsaw",
    "JigsawConfig",
    "MoCo",
    "MoCoConfig",
    "PCLConfig",
    "PIRLConfig",
    "Rotation",
    "RotationConfig",
    "SimCLR",
    "SimCLRConfig",
    "SimSiam",
    "SimSiamConfig",
    "SwAV",
    "SwAVConfig",
    "Teacher",
    "TeacherConfig",
]
