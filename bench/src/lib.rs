//! Parts of `make bench`: servers, cells, measurements and the report.

mod awake;
pub mod cells;
pub mod control;
pub mod destage;
pub mod fio;
pub mod flash;
pub mod iscsi;
pub mod limited;
pub mod load;
pub mod machine;
pub mod nbd;
pub mod null_server;
pub mod paired;
pub mod pool_moves;
pub mod pool_overhead;
pub mod process;
pub mod qos;
pub mod report;
pub mod run;
pub mod servers;
pub mod stalled;
pub mod stopped_control;
pub mod uncongested;
pub mod vhost_user;
pub mod vhost_user_flushes;
