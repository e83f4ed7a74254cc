"""What the tests share: real servers, real nodes, handlers that do as they are told."""
