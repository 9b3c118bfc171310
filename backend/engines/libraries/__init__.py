"""Engines that are other people's libraries, run under the `compress` environment: llm-compressor and AutoAWQ."""
