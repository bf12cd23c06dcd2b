"""The descriptor pool of our messages.

A pool holds every name once. Fivetran's own stubs register the names of this package in the
default pool, so ours live in a pool of their own: one process can then import both.
"""

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
