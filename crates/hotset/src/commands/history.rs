//! `hotset volume history`: the options.

use clap::Args;
use messages::{Request, unix_time};

use terminal::Failure;

/// Options of the command.
#[derive(Args)]
pub struct History {
    /// The volume; default: all volumes together
    name: Option<String>,
    /// All volumes of this datastore together
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    datastore: Option<String>,
    /// This pool: allocated and moved bytes
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "datastore"])]
    pool: Option<String>,
    /// Begin: -1h, 2026-11-22T05:51:03Z or seconds since 1970; default: one hour before the end
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    from: Option<String>,
    /// End, in the same format; default: now
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    to: Option<String>,
    /// Time step of a line: 10s, 5min, 1h; default: chosen for at most 600 lines
    #[arg(long, value_parser = unix_time::parse_duration, value_name = "TIME")]
    step: Option<u64>,
    /// Series to print, by their names in --json: reads, memory_hits, …
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    series: Vec<String>,
    /// Print comma-separated values
    #[arg(long)]
    pub csv: bool,
}

impl History {
    /// The request for the daemon.
    pub fn request(self) -> Result<Request, Failure> {
        let now = unix_time::now().as_secs();
        let moment =
            |text: Option<String>| text.map(|text| unix_time::parse(&text, now)).transpose().map_err(Failure::usage);
        Ok(Request::History {
            volume: self.name,
            datastore: self.datastore,
            pool: self.pool,
            from_unix_seconds: moment(self.from)?,
            to_unix_seconds: moment(self.to)?,
            step_seconds: self.step,
            series: self.series,
        })
    }
}
