#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::replies(input));
