"""Self-supervised methods, one file each; a new one is found by being a file of this package."""

from hexa.methods.deepcluster import DeepCluster, DeepClusterConfig
from hexa.methods.moco import MoCo, MoCoConfig
from hexa.methods.pcl import PCL, PCLConfig
from hexa.methods.swav import SwAV, SwAVConfig

__all__ = ["PCL", "DeepCluster", "DeepClusterConfig", "MoCo", "MoCoConfig", "PCLConfig", "SwAV", "SwAVConfig"]
