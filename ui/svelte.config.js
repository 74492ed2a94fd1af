// How components are compiled: all of them with runes.

export default { compilerOptions: { runes: true } };
