//! Confirmation of a command on the terminal.

use std::io::Write;

use terminal::Failure;

/// Asks for confirmation on the terminal.
pub fn is_confirmed(question: &str) -> Result<bool, Failure> {
    print!("{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    read.map_err(|error| Failure::failed(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
