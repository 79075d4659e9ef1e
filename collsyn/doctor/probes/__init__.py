"""Programs that try one thing each in a process of its own, so that a crash or a hang there is an answer too."""
