//! Fault cases that made other caches fail. A test of a numbered case begins with its number (`case_N_`), as do the
//! tests of the same case in `tests/e2e` and in other crates.

mod backing_fails;
mod bad_sector;
mod beside_destage;
mod causes;
mod crashes;
mod every_policy;
mod fail_write_k;
mod flash_devices;
mod flash_log;
mod flash_pages;
mod flash_quotas;
mod flash_states;
mod flush_ends;
mod hangs;
mod idle;
mod kept_records;
mod kills;
mod kills_flash;
mod log_destage;
mod many_discards;
mod one_block_often;
mod paced_log;
mod pool;
mod resized;
mod scans;
mod slow_backing;
mod soak;
mod spilled;
mod state_matrix;
mod stream_bypass;
mod stripes;
mod torture_regressions;
mod uncongested;
mod whole_blocks_only;
mod world_is_freed;
