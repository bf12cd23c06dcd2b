"""The messages and the service of Fivetran's destination contract, generated from .proto files.

A descriptor pool can hold each name only once, and Fivetran's own stubs register the same names in the
default pool. This package has a pool of its own, so one process can import it together with Fivetran's stubs.
"""

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
