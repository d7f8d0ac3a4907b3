"""Messages between the judge and a worker: requests, typed answers, shared memory."""
