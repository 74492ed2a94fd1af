//! `hotset check-config`: every error of a configuration at once, with line and remedy.

use std::path::Path;

use serde_json::json;

use crate::cli::{EXIT_USAGE, Failure};
use crate::config::Config;

/// Checks `file`; prints what is wrong with it, or that it is good.
pub fn run(file: &Path, json: bool) -> Result<(), Failure> {
    let checked = Config::load(file);
    if json {
        let problems = checked.as_ref().err().map(|problems| problems.problems.as_slice()).unwrap_or_default();
        println!("{:#}", json!({ "file": file, "valid": checked.is_ok(), "problems": problems }));
    }
    match checked {
        Ok(config) if !json => {
            let count = config.volumes.len();
            println!("{}: good, {count} volume{}", file.display(), if count == 1 { "" } else { "s" });
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(_) if json => Err(Failure { message: String::new(), code: EXIT_USAGE }),
        Err(problems) => {
            eprintln!("{problems}");
            Err(Failure { message: String::new(), code: EXIT_USAGE })
        }
    }
}
