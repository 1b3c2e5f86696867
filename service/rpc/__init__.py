"""The wire: servicers, their codec, one table of statuses, servers. Knows protobuf and no torch."""
