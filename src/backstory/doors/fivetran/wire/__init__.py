"""The messages and the service of Fivetran's destination contract, generated from .proto files.

A descriptor pool can hold each name only once, and Fivetran's own stubs register the same names in the
default pool. With a pool of its own, this package and Fivetran's stubs can be imported by one process.
"""

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
