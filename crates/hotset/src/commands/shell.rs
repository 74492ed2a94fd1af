//! `hotset completions` and `hotset man`: generated from the definition of the command line.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use terminal::Failure;

/// Prints the completions for `shell`.
pub fn completions(mut command: Command, shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "hotset", &mut text);
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Prints the manual: the page of the command and the pages of its subcommands, one after the other. With `folder` it
/// writes a file for each instead.
pub fn manual(mut command: Command, folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        let written = clap_mangen::generate_to(command, folder);
        return written.map_err(|error| {
            Failure::failed(format!("the manual cannot be written to {}: {error}", folder.display()))
        });
    }
    command.build();
    let mut text = Vec::new();
    pages(&command, &mut text).map_err(|error| Failure::failed(error.to_string()))?;
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

fn pages(command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    subcommands.into_iter().try_for_each(|sub| pages(sub, text))
}
