"""The Fivetran destination: gRPC service `fivetran_sdk.v2.DestinationConnector`."""
